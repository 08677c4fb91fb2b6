"""What Headwater runs on: settings, jars, Spark sessions, the local stack and the command line."""

__version__ = "0.1.0"
