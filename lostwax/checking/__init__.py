"""`lostwax.check`: programs, lowered or not, compared with what they were captured from."""
