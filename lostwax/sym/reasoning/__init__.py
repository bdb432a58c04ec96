"""What is known of symbols, what follows from it, and how more is learnt."""
