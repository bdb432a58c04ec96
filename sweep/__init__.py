"""`make sweep`: other people's architectures, exported and compared with eager."""
