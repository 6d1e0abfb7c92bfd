"""Standard problems solved by this package and by its peers: ``make peers``."""
