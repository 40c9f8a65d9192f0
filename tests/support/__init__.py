"""Helpers that several kinds of tests share, in folders by subject; `runner` runs the stages."""
