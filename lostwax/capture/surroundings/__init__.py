"""What a capture reads beside its arguments; compared before a program is used again."""
