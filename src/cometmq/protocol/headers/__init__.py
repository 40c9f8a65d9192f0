"""One struct for each request and response header, by family of requests.

A header is named as RocketMQ names the request, in CamelCase, with Request or Response at its end.
"""
