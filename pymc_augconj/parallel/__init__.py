"""Work on several threads.

===========  =========================================
``threads``  the number of threads that is worth using
===========  =========================================
"""
