"""Main: the command `plait`.

Owns the table of commands and the last word on errors: one line on stderr and exit code 1 or 2, never a traceback for
what a user did.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version

from plait.cli.arguments import Command, parse_arguments
from plait.cli.batch import run_batch_command
from plait.cli.verify import run_verify
from plait.config.batch_options import BatchOptions
from plait.config.engine_options import EngineOptions
from plait.config.option import OptionSources
from plait.config.verify_options import VerifyOptions
from plait.core.errors import PlaitError

COMMANDS = (
    Command("batch", "Answer a file of OpenAI Batch lines.", (BatchOptions, EngineOptions)),
    Command("verify", "Check that answers do not depend on the load.", (VerifyOptions, EngineOptions), "model"),
)
RUN: dict[str, Callable[[OptionSources], int]] = {"batch": run_batch_command, "verify": run_verify}

INTERRUPTED = 130
NOBODY_READS = 141
OUR_FAULT = 70


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    try:
        invocation = parse_arguments(sys.argv[1:] if argv is None else argv, COMMANDS, version("plait"))
        return RUN[invocation.command](invocation.sources)
    except PlaitError as error:
        print(f"plait: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        return NOBODY_READS
    except KeyboardInterrupt:
        print("plait: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as fault:  # the outermost frame: what comes here is a fault of Plait and is shown whole
        traceback.print_exc()
        print(f"plait: internal error ({type(fault).__name__}); please report it with the lines above", file=sys.stderr)
        return OUR_FAULT
