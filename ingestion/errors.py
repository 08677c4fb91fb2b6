"""Every error that a user may see. A message says what was found, where, and what to do next."""

import base64
import json
import re

# What may be wrong with a record. It lands all the same, with one of these in `_error_type`.
DESERIALIZATION = "deserialization_error"
SCHEMA = "schema_error"
TRANSFORMATION = "transformation_error"
VALIDATION = "validation_error"
ERROR_TYPES = (DESERIALIZATION, SCHEMA, TRANSFORMATION, VALIDATION)
ERASED = "erased"  # no error: `headwater forget` emptied the row, and its coordinates stay


class HeadwaterError(Exception):
    """Something failed. `hint` is the next step for the person who reads it."""

    exit_code = 1
    may_pass = True  # trying again may help: a server was unreachable, a disk was full

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class SettingsError(HeadwaterError):
    """A setting is unknown, missing or out of range."""

    exit_code = 2
    may_pass = False


class StreamFileError(HeadwaterError):
    """A stream file does not say what a stream file must say."""

    exit_code = 2
    may_pass = False


class ConditionError(HeadwaterError):
    """A condition cannot be read, or means something other than some rows of a stream."""

    exit_code = 2
    may_pass = False


class ServiceError(HeadwaterError):
    """A server of the local stack did not start, or one that is configured does not answer."""


class TableMovedError(HeadwaterError):
    """Someone else changed the bronze table since this writer looked: its commit was refused."""


class TopicChangedError(HeadwaterError):
    """The topic is not the one that the table's rows came from, or lacks what comes next."""

    may_pass = False


class TakenOverError(HeadwaterError):
    """Someone else writes the stream now."""

    may_pass = False


class SparkGoneError(HeadwaterError):
    """Spark's process ended; nothing in this process can go on."""

    may_pass = False


class CarriedError(Exception):
    """Carries an error of ours through Spark, which keeps the text of an exception only."""

    def __init__(self, error: HeadwaterError) -> None:
        parts = json.dumps([type(error).__name__, error.message, error.hint])
        packed = base64.b64encode(parts.encode()).decode()
        super().__init__(f"{error.message} [carried:{packed}]")


def carried(text: str) -> HeadwaterError | None:
    """The error that a text of Spark carries, if it does."""
    found = re.search(r"\[carried:([A-Za-z0-9+/=]+)\]", text)
    if found is None:
        return None
    name, message, hint = json.loads(base64.b64decode(found[1]))
    kinds = {kind.__name__: kind for kind in HeadwaterError.__subclasses__()}
    return kinds.get(name, HeadwaterError)(message, hint)
