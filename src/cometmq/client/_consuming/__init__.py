"""The parts that push, pull, pop and simple consumers share."""
