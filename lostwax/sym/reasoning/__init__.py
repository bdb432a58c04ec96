"""What is known of symbols, canonical forms under it, what follows from it, how more is learnt."""
