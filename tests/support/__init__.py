"""What several kinds of tests share: the build under test, rounds, ports, server processes."""
