"""Work on several threads.

============  ==============================================================
``settings``  settings of the whole process, shared between concurrent calls
``threads``   the number of threads that is worth using
============  ==============================================================
"""
