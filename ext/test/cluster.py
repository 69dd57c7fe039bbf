"""A throwaway PostgreSQL cluster with the tracker, and its physical copies.

Standard library only; psql is the client. Servers run as user postgres when
the tests run as root, listen on a socket in their own directory, and are
killed by their own process numbers alone.
"""

import os
import pathlib
import pwd
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
EXT = HERE.parent
ROOT = EXT.parent
PAGE = 8192
SEGMENT_BLOCKS = 131072

# small memory and frequent checkpoints: many writes, many crashes matter
SETTINGS = """
listen_addresses = ''
shared_buffers = 4MB
max_connections = 40
max_wal_size = 64MB
min_wal_size = 32MB
checkpoint_timeout = 30s
autovacuum_naptime = 1s
bgwriter_delay = 20ms
fsync = on
synchronous_commit = off
max_prepared_transactions = 10
wal_level = replica
logging_collector = off
log_checkpoints = on
allow_in_place_tablespaces = on
restart_after_crash = on
jit = off
"""


class Failure(Exception):
    """A test's statement turned out to be false."""


def check(condition, message):
    if not condition:
        raise Failure(message)


def bin_directory(major):
    """Where the programs of a major version are."""
    for path in (os.environ.get(f"PG{major}_BIN"), ROOT / ".deps" / "pg" / str(major) / "bin",
                 f"/usr/lib/postgresql/{major}/bin"):
        if path and (pathlib.Path(path) / "postgres").exists():
            return pathlib.Path(path)
    raise SystemExit(f"PostgreSQL {major} was not found: run scripts/setup, or set PG{major}_BIN")


def as_server_user(command):
    """Servers refuse to be root."""
    if os.getuid() != 0:
        return [str(c) for c in command]
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] + \
        [str(c) for c in command]


def run(command, **options):
    options.setdefault("check", True)
    done = subprocess.run(as_server_user(command), capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, cwd="/tmp",
                          **{k: v for k, v in options.items() if k != "check"})
    if options["check"] and done.returncode != 0:
        raise Failure(f"{' '.join(str(c) for c in command)} failed:\n{done.stdout}{done.stderr}")
    return done


def scratch_parent():
    """Memory, if there is plenty: the tests kill processes, not power."""
    chosen = os.environ.get("PGSTRATA_TEST_DIR")
    if chosen:
        return chosen
    shm = pathlib.Path("/dev/shm")
    roomy = shm.is_dir() and shutil.disk_usage(shm).free > 4 << 30
    return str(shm) if roomy else tempfile.gettempdir()


class Scratch:
    """A directory that the server user may use, removed at the end."""

    def __init__(self, name):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix=f"pgs-ext-{name}-", dir=scratch_parent()))
        self.own(self.path)

    @staticmethod
    def own(path):
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(path, user.pw_uid, user.pw_gid)

    def directory(self, name):
        path = self.path / name
        path.mkdir()
        path.chmod(0o700)
        self.own(path)
        return path

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)


class Cluster:
    """One data directory and its server."""

    def __init__(self, scratch, major, name="data", port=5432):
        self.scratch = scratch
        self.major = major
        self.bin = bin_directory(major)
        self.data = scratch.path / name
        self.log = scratch.path / f"{name}.log"
        self.port = port
        self.environment = None

    # -- the server's life

    def initialize(self, checksums=False, settings=""):
        command = [self.bin / "initdb", "-D", self.data, "-A", "trust", "-U", "postgres",
                   "--no-sync", "--locale=C", "-E", "UTF8"]
        if checksums:
            command.append("--data-checksums")
        elif self.major >= 18:
            command.append("--no-data-checksums")
        run(command)
        self.configure(SETTINGS + settings + f"""
unix_socket_directories = '{self.scratch.path}'
port = {self.port}
shared_preload_libraries = 'pgstrata'
pgstrata.map_size = 32
""")

    def configure(self, text):
        """Later settings win."""
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as conf:
            conf.write(text + "\n")

    def control_state(self):
        """DBState of pg_control, the number after system identifier and two versions."""
        return struct.unpack_from("=I", (self.data / "global" / "pg_control").read_bytes(), 16)[0]

    def start(self, patience=60, environment=None):
        """Start; after a kill the old server's children may need a while to go."""
        until = time.monotonic() + patience
        command = [self.bin / "pg_ctl", "-D", self.data, "-l", self.log, "-w", "-t", "60", "start"]
        variables = dict(os.environ, **(environment or {}))
        while True:
            if run(command, check=False, env=variables).returncode == 0:
                return
            if time.monotonic() > until:
                raise Failure(f"server did not start, its log ends:\n{self.log_tail()}")
            time.sleep(0.2)

    def stop(self, mode="fast"):
        run([self.bin / "pg_ctl", "-D", self.data, "-m", mode, "-w", "-t", "120", "stop"])

    def restart(self, mode="fast"):
        self.stop(mode)
        self.start()

    def postmaster_pid(self):
        return int((self.data / "postmaster.pid").read_text().split("\n")[0])

    def kill_postmaster(self):
        """As a crash of the server: nobody is left, nor can a child be born meanwhile."""
        pid = self.postmaster_pid()
        os.kill(pid, signal.SIGSTOP)
        children = self.child_pids()
        os.kill(pid, signal.SIGKILL)
        for child in children:
            self.kill(child)
        until = time.monotonic() + 30
        while any(pathlib.Path(f"/proc/{p}").exists() for p in [pid] + children) \
                and time.monotonic() < until:
            time.sleep(0.02)

    def child_pids(self):
        pid = self.postmaster_pid()
        children = []
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == pid:
                children.append(int(stat.parent.name))
        return children

    def children(self):
        """Process number and title: not all of them are in pg_stat_activity."""
        titles = {}
        try:
            for pid in self.child_pids():
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
                titles[pid] = command.rstrip(b"\0 ").decode(errors="replace").removeprefix("postgres: ")
        except (FileNotFoundError, ProcessLookupError):
            pass
        return titles

    @staticmethod
    def kill(pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def running(self):
        return run([self.bin / "pg_ctl", "-D", self.data, "status"], check=False).returncode == 0

    def log_tail(self, lines=25):
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").split("\n")[-lines:])

    # -- SQL

    def psql(self, sql, database="postgres", check=True, options=()):
        return run([self.bin / "psql", "-X", "-q", "-At", "-h", self.scratch.path, "-p", self.port,
                    "-U", "postgres", "-d", database, "-v", "ON_ERROR_STOP=1", *options,
                    "-c", sql], check=check)

    def sql(self, sql, database="postgres"):
        return self.psql(sql, database).stdout.strip()

    def wait_ready(self, patience=60):
        """Until it answers, and writes: recovery is over."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            done = self.psql("SELECT pg_is_in_recovery()", check=False)
            if done.returncode == 0:
                return
            time.sleep(0.1)
        raise Failure(f"server does not answer, its log ends:\n{self.log_tail()}")

    def create_extension(self):
        self.sql("CREATE EXTENSION pgstrata")

    def bump(self):
        return self.sql("SELECT pgstrata.bump()")

    def reason(self):
        """Why the tracker refuses; empty if it tracks."""
        return self.sql("SELECT reason FROM pgstrata.state()")

    def history_reason(self):
        return self.sql("SELECT history_reason FROM pgstrata.state()")

    def unknown(self, token):
        """Why the token is unknown; empty if it is known."""
        return self.sql(f"SELECT reason FROM pgstrata.token_status('{token}')")

    def changes(self, token):
        return Changes(self.sql(
            "SELECT coalesce(path, ''), coalesce(fork, ''), coalesce(segment, -1),"
            f" whole, encode(blocks, 'hex') FROM pgstrata.changes('{token}')"))


class Changes:
    """The answer of pgstrata.changes(), to be asked block by block."""

    def __init__(self, text):
        self.side_forks = set()
        self.directories = set()
        self.forks = set()
        self.bitmaps = {}
        for line in text.split("\n") if text else []:
            path, fork, segment, whole, blocks = line.split("|")
            if whole == "f":
                old = self.bitmaps.get((path, fork, int(segment)), b"")
                new = bytes.fromhex(blocks)
                length = max(len(old), len(new))
                self.bitmaps[path, fork, int(segment)] = bytes(
                    a | b for a, b in zip(old.ljust(length, b"\0"), new.ljust(length, b"\0")))
            elif not path:
                self.side_forks.add(fork)
            elif not fork:
                self.directories.add(path)
            else:
                self.forks.add((path, fork))

    def has(self, path, fork, segment, block):
        if fork in self.side_forks or (path, fork) in self.forks or \
                path.rsplit("/", 1)[0] in self.directories:
            return True
        bitmap = self.bitmaps.get((path, fork, segment), b"")
        return block // 8 < len(bitmap) and bool(bitmap[block // 8] >> (block % 8) & 1)

    def count(self):
        """Blocks with a bit of their own."""
        return sum(bin(byte).count("1") for bitmap in self.bitmaps.values() for byte in bitmap)


RELATION_FILE = re.compile(r"^([1-9][0-9]*)(?:_(fsm|vm|init))?(?:\.([0-9]+))?$")


def relation_files(data):
    """(path without suffixes, fork, segment) -> file, without unlogged relations."""
    files = {}
    data = pathlib.Path(data)
    places = [data / "global", *(data / "base").glob("[0-9]*"),
              *(data / "pg_tblspc").glob("*/PG_*/[0-9]*")]
    for place in places:
        try:
            names = [(RELATION_FILE.match(entry.name), entry) for entry in place.iterdir()]
        except FileNotFoundError:
            continue
        unlogged = {m[1] for m, _ in names if m and m[2] == "init"}
        for match, entry in names:
            if match and not (match[1] in unlogged and match[2] != "init"):
                key = (str(place.relative_to(data) / match[1]), match[2] or "main",
                       int(match[3] or 0))
                files[key] = entry
    return files


def copy_relations(data, target):
    """Copy all relation files, as a backup would: under the server's feet."""
    shutil.rmtree(target, ignore_errors=True)
    for (path, fork, segment), source in relation_files(data).items():
        to = pathlib.Path(target) / source.relative_to(data)
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source, to)
        except FileNotFoundError:
            continue
    for place in ("global", "base", "pg_tblspc"):
        (pathlib.Path(target) / place).mkdir(parents=True, exist_ok=True)
