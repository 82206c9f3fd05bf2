"""Ledger: which lines of a job are finished, and their output, in one SQLite file.

Owns durability. A line is either recorded, complete with its output, or pending; there is no state between. It knows
nothing about engines or output files. Invariant: what `record` returned from survives a kill and a loss of power, and a
line is recorded at most once.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plait.api.answers import Usage
from plait.batch.outcomes import LineOutcome
from plait.core.errors import InvariantError, PlaitError, UsageError

_APPLICATION = 0x504C4954
"""Stands in `application_id`: the file is a ledger and no other program's database."""

_FORMAT = 4
"""Stands in `user_version`; a ledger of another format is refused."""

_MARKS = ("application_id", "user_version")
_FIELDS = "job, line, custom_id, state, output, prompt_tokens, cached_tokens, output_tokens, request, folded"
"""Of a line, those that its digest is of."""
_LOCK_WAIT_S = 0.5
_FETCH_LINES = 64

# Not WITHOUT ROWID: rows with kilobytes of text are better kept out of the key's tree.
_SCHEMA = (
    """CREATE TABLE jobs (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        input_sha256 TEXT NOT NULL,
        model TEXT NOT NULL,
        weights TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        seed INTEGER NOT NULL,
        part TEXT NOT NULL,
        output_sha256 TEXT
    )""",
    """CREATE TABLE lines (
        job INTEGER NOT NULL REFERENCES jobs (id),
        line INTEGER NOT NULL,
        custom_id TEXT,
        state TEXT NOT NULL CHECK (state IN ('done', 'failed')),
        output TEXT NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        cached_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        request BLOB,
        folded INTEGER NOT NULL,
        digest BLOB NOT NULL,
        PRIMARY KEY (job, line)
    )""",
    "CREATE INDEX lines_by_request ON lines (job, request) WHERE request IS NOT NULL",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_FORMAT}",
)

_MEND = "put back a copy that is whole, or move it away to begin anew; the .partial file has what was finished"

_WORDS = {
    sqlite3.SQLITE_BUSY: "{path} is in use: another process works on this job; wait for it, or choose another output",
    sqlite3.SQLITE_LOCKED: "{path} is in use: another process works on this job; wait for it, or choose another output",
    sqlite3.SQLITE_FULL: (
        "the disk is full: {path} cannot grow; finished lines are safe: free some space and run the same command again"
    ),
    sqlite3.SQLITE_IOERR: (
        "{path} cannot be read or written ({error}); finished lines are safe: mend the disk or its limits and run the "
        "same command again"
    ),
    sqlite3.SQLITE_READONLY: "{path} is read-only; make it writable, or choose another output",
    sqlite3.SQLITE_CANTOPEN: "{path} cannot be created or opened; choose an output in a folder that can be written to",
    sqlite3.SQLITE_NOTADB: "{path} is no ledger; move it away to start anew, or choose another output",
    sqlite3.SQLITE_CORRUPT: "{path} is damaged; move it away to start anew, or choose another output",
}


@dataclass(frozen=True, slots=True)
class JobTerms:
    """What the answers of a job depend on besides the code.

    `model` is the name that lines are answered under, `weights` tells models of one name apart; `part` is what of the
    input the job has, as its command names it: nothing is all of it.
    """

    input_sha256: str
    model: str
    weights: str
    fingerprint: str
    seed: int
    part: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a ledger. `warnings`: what is not as it was when the job began; it goes on all the same."""

    id: int
    name: str
    is_resumed: bool
    output_sha256: str | None
    """Of the output file of a complete job."""
    warnings: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        return self.output_sha256 is not None


NO_TOKENS = Usage()


@dataclass(frozen=True, slots=True)
class Counts:
    """Recorded lines of a job: answered ones, failed ones, and the tokens of all of them. `folded`: answered ones that
    were told what another line was told; `handed_on`: their tokens, which were not computed.
    """

    done: int
    failed: int
    usage: Usage
    folded: int = 0
    handed_on: Usage = NO_TOKENS

    @property
    def recorded(self) -> int:
        return self.done + self.failed

    @property
    def computed(self) -> Usage:
        """Tokens of all but the folded ones."""
        return self.usage.minus(self.handed_on)


@dataclass(frozen=True, slots=True)
class RecordedLine:
    """An answered line, as it was recorded."""

    number: int
    output: str
    usage: Usage


class OtherJob(UsageError):
    """The ledger has a job of this name that is not the same. `what` says why, of whoever the job belongs to."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path} {what}; add --restart to throw the finished lines away, or choose another output")
        self.what = what


class OtherFormat(PlaitError):
    """The ledger was written by another version. `found`: its format."""

    def __init__(self, path: Path, found: int) -> None:
        super().__init__(
            f"{path} is no ledger of this version (format {found}; this version writes format {_FORMAT}); "
            "move it away to start anew, or choose another output"
        )
        self.found = found


class Ledger:
    """An open ledger. The file is locked for this process until `close`, and by nothing once the process is gone."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._lock = threading.Lock()
        """Of whoever writes, and of those that look an answer up meanwhile."""

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """Open or create. A file that another process has open is refused at once."""
        with _trouble_in_words(path):
            # Written by one thread at a time, but not always by the thread that opened it.
            connection = sqlite3.connect(path, timeout=_LOCK_WAIT_S, isolation_level=None, check_same_thread=False)
            connection.text_factory = _as_far_as_it_is_text
            try:
                _prepare(connection, path)
            except BaseException:
                connection.close()
                raise
        return cls(path, connection)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def begin_job(self, name: str, terms: JobTerms, *, restart: bool = False) -> Job:
        """Create the job, or resume it if the ledger has one of this name, whole as it was recorded. `restart` forgets
        what it had finished.
        """
        job = self._begun(name, terms, restart)
        for _ in self.outputs(job):
            # Every line is looked at before anything is made of them, such as a new partial file in place of the old.
            pass
        return job

    def _begun(self, name: str, terms: JobTerms, restart: bool) -> Job:
        with self._transaction() as connection:
            known = connection.execute(
                "SELECT id, output_sha256, input_sha256, model, weights, fingerprint, seed, part FROM jobs "
                "WHERE name = ?",
                (name,),
            ).fetchone()
            if known is not None and restart:
                connection.execute("DELETE FROM lines WHERE job = ?", (known[0],))
                connection.execute("DELETE FROM jobs WHERE id = ?", (known[0],))
            elif known is not None:
                then = JobTerms(*known[2:])
                self._check_same_job(then, terms)
                output_sha256 = None if known[1] is None else str(known[1])
                return Job(int(known[0]), name, True, output_sha256, _warnings(then, terms))
            row = connection.execute(
                "INSERT INTO jobs (name, input_sha256, model, weights, fingerprint, seed, part) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id",
                (name, terms.input_sha256, terms.model, terms.weights, terms.fingerprint, terms.seed, terms.part),
            ).fetchone()
            return Job(int(row[0]), name, is_resumed=False, output_sha256=None)

    def finished(self, job: Job) -> frozenset[int]:
        """Numbers of the recorded lines."""
        with _trouble_in_words(self._path):
            rows = self._connection.execute("SELECT line FROM lines WHERE job = ?", (job.id,))
            return frozenset(int(row[0]) for row in rows)

    def record(self, job: Job, outcomes: Sequence[LineOutcome]) -> None:
        """Record lines in one transaction; on the disk when this returns."""
        rows = [_row(job, outcome) for outcome in outcomes]
        with self._transaction() as connection:
            try:
                connection.executemany(f"INSERT INTO lines ({_FIELDS}, digest) VALUES ({', '.join(11 * '?')})", rows)
            except sqlite3.IntegrityError as error:
                raise InvariantError(f"a line of {[row[1] for row in rows]} is recorded twice: {error}") from error

    def outputs(self, job: Job, *, failed: bool | None = None) -> Iterator[str]:
        """The output of every recorded line, or of those that failed or did not, in the order of the input.
        `PlaitError` at one that is not what was recorded.
        """
        state = None if failed is None else "failed" if failed else "done"
        with _trouble_in_words(self._path):
            rows = self._connection.execute(
                f"SELECT {_FIELDS}, digest FROM lines WHERE job = ?1 AND (?2 IS NULL OR state = ?2) ORDER BY line",
                (job.id, state),
            )
            while batch := rows.fetchmany(_FETCH_LINES):
                for row in batch:
                    yield _checked(self._path, *row).output

    def answer_to(self, job: Job, request: bytes) -> RecordedLine | None:
        """The first line that was answered and asked for this; None: there is none. For any thread, while another one
        records.
        """
        with self._lock, _trouble_in_words(self._path):
            row = self._connection.execute(
                f"SELECT {_FIELDS}, digest FROM lines WHERE job = ? AND request = ? ORDER BY line LIMIT 1",
                (job.id, request),
            ).fetchone()
        return None if row is None else _checked(self._path, *row)

    def counts(self, job: Job) -> Counts:
        with _trouble_in_words(self._path):
            row = self._connection.execute(
                "SELECT coalesce(sum(state = 'done'), 0), coalesce(sum(state = 'failed'), 0), "
                "coalesce(sum(prompt_tokens), 0), coalesce(sum(cached_tokens), 0), coalesce(sum(output_tokens), 0), "
                "coalesce(sum(folded), 0), coalesce(sum(folded * prompt_tokens), 0), "
                "coalesce(sum(folded * cached_tokens), 0), coalesce(sum(folded * output_tokens), 0) "
                "FROM lines WHERE job = ?",
                (job.id,),
            ).fetchone()
        done, failed, prompt, cached, said, folded, *handed_on = map(int, row)
        return Counts(done, failed, Usage(prompt, cached, said), folded, Usage(*handed_on))

    def complete(self, job: Job, output_sha256: str) -> None:
        """Every line is recorded and the output file, with this digest, is whole."""
        with self._transaction() as connection:
            connection.execute("UPDATE jobs SET output_sha256 = ? WHERE id = ?", (output_sha256, job.id))

    def _check_same_job(self, then: JobTerms, now: JobTerms) -> None:
        if then.input_sha256 != now.input_sha256:
            raise OtherJob(self._path, "belongs to another input, or the input has changed since")
        if then.model != now.model:
            raise OtherJob(self._path, f"was begun with model {then.model!r}, now it is {now.model!r}")
        if then.part != now.part:
            was, is_now = (f"shard {one}" if one else "the whole input" for one in (then.part, now.part))
            raise OtherJob(self._path, f"was begun as {was}, now it is {is_now}")
        if then.weights != now.weights:
            raise OtherJob(
                self._path,
                f"was begun with other weights that are called {then.model!r} too (sha256 {_short(then.weights)}, now "
                f"{_short(now.weights)})",
            )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _trouble_in_words(self._path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # SQLite itself rolls back after some errors, a full disk among them.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def _row(job: Job, outcome: LineOutcome) -> tuple[object, ...]:
    usage = outcome.usage
    fields = (
        job.id,
        outcome.number,
        outcome.custom_id,
        "failed" if outcome.failed else "done",
        outcome.output,
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        outcome.request,
        int(outcome.is_folded),
    )
    return (*fields, _digest(fields))


def _checked(
    path: Path,
    job: int,
    line: int,
    custom_id: str | None,
    state: str,
    output: str,
    prompt: int,
    cached: int,
    said: int,
    request: bytes | None,
    folded: int,
    digest: bytes,
) -> RecordedLine:
    """A row of `lines`; `PlaitError` if it is not what was recorded."""
    if digest != _digest((job, line, custom_id, state, output, prompt, cached, said, request, folded)):
        raise PlaitError(f"{path} is damaged at line {line} of the input; {_MEND}")
    return RecordedLine(line, output, Usage(prompt, cached, said))


def _digest(fields: Sequence[object]) -> bytes:
    """Of all that a line says. SQLite itself finds damage to its own structure only, not to what it holds."""
    return hashlib.blake2b(repr(tuple(fields)).encode(errors="surrogatepass"), digest_size=8).digest()


def _as_far_as_it_is_text(raw: bytes) -> str:
    """Damaged text becomes other text, whose digest is wrong, instead of an error that quotes somebody's answer."""
    return raw.decode(errors="replace")


def _check_whole(connection: sqlite3.Connection, path: Path) -> None:
    """`PlaitError` for a file in which something was lost: a line that is missing would be run again without a word."""
    found = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
    strays = connection.execute("SELECT count(*) FROM lines WHERE job NOT IN (SELECT id FROM jobs)").fetchone()[0]
    if found != "ok" or strays:
        why = " ".join(found.split()) if found != "ok" else f"{strays} lines belong to no job"
        raise PlaitError(f"{path} is damaged ({why}); {_MEND}")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Take the lock and make sure of the format. A file that is no ledger is left as it is."""
    # In exclusive mode SQLite's own lock on the file is kept until the connection closes. The operating system drops it
    # when a process dies, however it dies. It also needs no shared memory, so network file systems can hold a ledger.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN IMMEDIATE")
    application, found = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in _MARKS)
    is_empty = not found and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    connection.execute("COMMIT")
    if not is_empty and application != _APPLICATION:
        raise PlaitError(
            f"{path} is no ledger of this version (another program's database, or older; this version writes format "
            f"{_FORMAT}); move it away to start anew, or choose another output"
        )
    if not is_empty and found != _FORMAT:
        raise OtherFormat(path, found)
    if not is_empty:
        _check_whole(connection, path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # Copied out of the write-ahead log after every transaction, so that the ledger is whole without the file beside it
    # even after a kill. That makes a commit about four times as slow (15 ms on an SSD); groups of lines hide it.
    connection.execute("PRAGMA wal_autocheckpoint = 1")
    if is_empty:
        connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("COMMIT")


def _short(weights: str) -> str:
    """The digest's beginning, and all of what stands behind it: how the weights were rounded when they were loaded."""
    digest, plus, rounding = weights.partition("+")
    return digest[:16] + plus + rounding


def _warnings(then: JobTerms, now: JobTerms) -> tuple[str, ...]:
    warnings = []
    if then.fingerprint != now.fingerprint:
        warnings.append(
            f"the job was begun under numerics {then.fingerprint}, now they are {now.fingerprint}: answers from before "
            "and after may differ; system_fingerprint in each answer says which is which"
        )
    if then.seed != now.seed:
        warnings.append(f"the job was begun with seed {then.seed}, now it is {now.seed}: lines without a seed differ")
    return tuple(warnings)


@contextmanager
def _trouble_in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        raise PlaitError(_WORDS.get(code, "{path} cannot be used: {error}").format(path=path, error=error)) from error
    except UnicodeDecodeError as error:
        # SQLite quotes what it found, and damaged text is no text.
        raise PlaitError(f"{path} is damaged; {_MEND}") from error
