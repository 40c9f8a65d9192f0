"""The options of the formats: one dataclass per format, made from texts."""

from cometmq.spark.options.parsing import Option, option, options_of, parse_options

__all__ = ["Option", "option", "options_of", "parse_options"]
