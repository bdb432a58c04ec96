"""The passes that come with lostwax, one matter a file. Each is sound by itself: what a caller can
see of a program is the same before and after, but for what the pass says it changes."""
