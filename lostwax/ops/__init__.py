"""What is known of each operator, one family a file: loaded when an operator of it is met."""
