"""Stages: a program cut along its modules into programs that run one after the other."""
