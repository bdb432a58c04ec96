"""Lists to which loops append, where only the program knows how long they are."""
