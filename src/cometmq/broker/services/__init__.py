"""What outlives a request: topics, groups, offsets, members, held pulls, delays, statistics."""
