"""What a capture reads beside the arguments, compared before a program is used again."""
