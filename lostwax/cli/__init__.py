"""The `lostwax` command. What a command does is imported when it is called: `lostwax --help` and
`lostwax explain` load no torch."""
