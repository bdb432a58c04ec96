"""What a call of a program must fulfil beyond the form of its arguments: what the original asked of
its tensors, memory that must be apart, torch's settings, custom operators that keep their word.
"""
