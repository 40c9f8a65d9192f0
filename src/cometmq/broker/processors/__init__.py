"""Answers to requests, one family of request codes in each module."""
