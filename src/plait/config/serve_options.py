"""Serve options: where the server listens, whom it lets in and how much it takes on.

Owns the options that only `plait serve` has. Lists are written with commas.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.config.class_times import ClassTimes, parse_class_times
from plait.config.option import option
from plait.config.places import state_dir
from plait.config.values import bytes_from, count_between, parse_flag, parse_path, parse_patience, parse_text

DEFAULT_STATE_DIR = state_dir()
MAX_PORT = 65_535
MAX_QUEUED = 1_000_000
MIB = 1024 * 1024
LEAST_SIZE = 256
"""Of a body or a file that may be sent: less would hold no request."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    host: str = option("127.0.0.1", parse_text, "address to listen on; 0.0.0.0 is every one", metavar="ADDRESS")
    port: int = option(8000, count_between(0, MAX_PORT), "port to listen on; 0: any that is free", metavar="PORT")
    uds: Path | None = option(None, parse_path, "listen on this Unix socket instead", metavar="FILE", rare=True)
    served_model_name: str | None = option(
        None, parse_text, "names that clients may ask for, the first one is listed first", metavar="NAME[,NAME]"
    )
    api_key: str | None = option(
        None, parse_text, "keys that clients must send; better in a file or in PLAIT_API_KEY", metavar="KEY[,KEY]"
    )
    api_key_file: Path | None = option(
        None, parse_path, "a file with one key a line, and its limits such as requests=8", metavar="FILE"
    )
    ttft_slo: ClassTimes | None = option(
        None,
        parse_class_times,
        "target for the first token, e.g. 500ms or online=500ms,batch=1m; a number alone is seconds",
        metavar="TIME",
    )
    itl_slo: ClassTimes | None = option(
        None, parse_class_times, "target for the longest gap between two tokens", metavar="TIME", rare=True
    )
    tpot_slo: ClassTimes | None = option(
        None, parse_class_times, "target for the mean gap between two tokens", metavar="TIME"
    )
    max_num_queued_reqs: int = option(
        1024,
        count_between(0, MAX_QUEUED),
        "answers that may wait beyond --max-num-seqs; more get 429",
        metavar="N",
        rare=True,
    )
    max_body_size: int = option(4 * MIB, bytes_from(LEAST_SIZE), "largest body of a request", metavar="SIZE", rare=True)
    shutdown_timeout: float = option(
        30.0, parse_patience, "time that answers have to finish after SIGTERM or Ctrl-C", metavar="SECONDS", rare=True
    )
    batch_dir: Path | None = option(
        None,
        parse_path,
        "where files and batches are kept; default: a folder of this port's own",
        metavar="DIR",
        rare=True,
    )
    max_file_size: int = option(
        512 * MIB, bytes_from(LEAST_SIZE), "largest file that can be uploaded", metavar="SIZE", rare=True
    )
    allowed_origins: str | None = option(
        None, parse_text, "origins whose browsers may call, or *", metavar="ORIGIN[,ORIGIN]", rare=True
    )
    ssl_certfile: Path | None = option(None, parse_path, "certificate for TLS", metavar="FILE", rare=True)
    ssl_keyfile: Path | None = option(None, parse_path, "its private key", metavar="FILE", rare=True)
    root_path: str = option("", str, "path under which a proxy shows this server", metavar="PATH", rare=True)
    log_format: str = option("text", parse_text, "form of the log lines", choices=("text", "json"), rare=True)
    otlp_traces_endpoint: str | None = option(
        None, parse_text, "collector that gets a trace of each request; needs plait[otel]", metavar="URL", rare=True
    )
    strict_fields: bool = option(
        False, parse_flag, "refuse fields that are not known instead of ignoring them", rare=True
    )
    enable_docs: bool = option(True, parse_flag, "serve /docs and /openapi.json", rare=True)
    dry_run: bool = option(False, parse_flag, "print what would be served, with which limits, and exit")
