"""The passes that come with lostwax, one subject a file. Each is sound by itself: a caller sees no
difference between the programs before and after, except for what the pass says it changes."""
