"""What happens to a server under torture, and to its files while it is down.

An event is a method of Events named in CRASHES, QUIET or VOIDING, drawn by the
plan of a round. It leaves a server that runs, or is about to.
"""

import os
import random
import signal
import subprocess
import time

from cluster import Failure, as_server_user, check, run

SHUT_DOWN = 1
MAP_PAGE = 4096
WORKER = "pgstrata tracker"
DDL = ("CREATE", "DROP", "ALTER", "VACUUM", "REINDEX", "CLUSTER", "TRUNCATE", "REFRESH")


def wait_for(is_there, otherwise, patience=60):
    until = time.monotonic() + patience
    while not is_there():
        check(time.monotonic() < until, otherwise)
        time.sleep(0.01)


class Events:
    """Happens to one cluster; everything drawn comes from the seed."""

    def __init__(self, cluster, seed):
        self.cluster = cluster
        self.random = random.Random(seed)
        self.settings = {"full_page_writes": "on", "wal_log_hints": "off"}
        self.checksums = False
        # why the tokens made before must be unknown now, or that they may be
        self.forbidden = None
        self.excused = False

    # -- settings

    def set(self, name, value):
        self.settings[name] = value
        self.cluster.configure(f"{name} = {value}")

    def hints_logged(self):
        return self.checksums or self.settings["wal_log_hints"] == "on"

    def toggle_full_page_writes(self):
        self.set("full_page_writes", self.random.choice(["on", "off"]))
        self.cluster.psql("SELECT pg_reload_conf()", check=False)

    def restart_with_other_settings(self):
        self.stop_cleanly()
        self.set("pgstrata.map_size", self.random.choice([16, 24, 32, 64]))
        self.set("shared_buffers", self.random.choice(["1MB", "2MB", "4MB", "16MB"]))
        self.set("wal_log_hints", self.random.choice(["on", "off"]))
        self.set("autovacuum", self.random.choice(["on", "off"]))
        self.cluster.start()

    # -- processes

    def processes(self, *words):
        """Those whose title begins with one of the words, or has it as its command."""
        return [pid for pid, title in self.cluster.children().items()
                if title.startswith(words) or any(f"] {word}" in title for word in words)]

    def kill_process(self, *words, patience=2.0, sig=signal.SIGKILL):
        until = time.monotonic() + patience
        while time.monotonic() < until:
            found = self.processes(*words)
            if found:
                try:
                    os.kill(self.random.choice(found), sig)
                    return True
                except ProcessLookupError:
                    continue
            time.sleep(0.005)
        return False

    def must_kill(self, *words, sig=signal.SIGKILL):
        """A process that a server always has, once it is ready."""
        self.cluster.wait_ready()
        if not self.kill_process(*words, patience=10, sig=sig):
            raise Failure(f"no process is called {words}, of {sorted(self.cluster.children().values())}")

    def kill_backend(self):
        self.kill_process("postgres ", "autovacuum worker")

    def kill_backend_in_ddl(self):
        self.kill_process(*DDL)

    def kill_backend_in_database_ddl(self):
        self.kill_process("CREATE DATABASE", "DROP DATABASE", "ALTER DATABASE")

    def kill_worker(self):
        self.must_kill(WORKER)

    def terminate_worker(self):
        self.must_kill(WORKER, sig=signal.SIGTERM)

    def kill_checkpointer(self):
        self.must_kill("checkpointer")

    def kill_writer(self):
        self.must_kill(self.random.choice(["background writer", "walwriter"]))

    def checkpoint_in_background(self):
        subprocess.Popen(as_server_user([self.cluster.bin / "psql", "-X", "-h", self.cluster.scratch.path, "-p",
                                         self.cluster.port, "-U", "postgres", "-d", "postgres", "-c", "CHECKPOINT"]),
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/tmp")
        time.sleep(self.random.uniform(0, 0.05))

    def kill_checkpointer_at_work(self):
        self.cluster.wait_ready()
        self.checkpoint_in_background()
        self.must_kill("checkpointer")

    # -- the whole server

    def stop_cleanly(self):
        """A fast stop in the middle of crash recovery hangs the stock server."""
        self.cluster.wait_ready()
        self.cluster.stop()

    def restart(self):
        self.stop_cleanly()
        self.cluster.start()

    def stop_immediately(self):
        self.cluster.stop("immediate")
        self.cluster.start()

    def stop_immediately_in_checkpoint(self):
        self.checkpoint_in_background()
        self.stop_immediately()

    def kill_postmaster(self):
        self.cluster.kill_postmaster()
        self.cluster.start()

    def kill_in_recovery(self):
        """Once or twice, somewhere in its recovery."""
        self.cluster.stop("immediate")
        for _ in range(self.random.randint(1, 2)):
            run([self.cluster.bin / "pg_ctl", "-D", self.cluster.data, "-l", self.cluster.log, "-W", "start"],
                check=False)
            # pg_ctl comes back before there is a server
            wait_for(self.cluster.running, "a server that was started is not there")
            time.sleep(self.random.uniform(0, 0.4))
            self.cluster.kill_postmaster()
        self.cluster.start()

    def stop_uncleanly(self):
        """Killed after the shutdown checkpoint, before the map is saved: a container's stop that takes too long."""
        self.cluster.wait_ready()
        wait_for(lambda: self.processes("checkpointer"), "there is no checkpointer")
        postmaster = self.cluster.postmaster_pid()
        checkpointer = self.processes("checkpointer")[0]
        # neither may run ahead of us
        os.kill(checkpointer, signal.SIGSTOP)
        os.kill(postmaster, signal.SIGINT)
        wait_for(lambda: not self.others_than("checkpointer", "io worker"), "processes do not end")
        for _ in range(20):
            # it tells the checkpointer now
            time.sleep(0.2)
            os.kill(postmaster, signal.SIGSTOP)
            os.kill(checkpointer, signal.SIGCONT)
            self.kill_when_shut_down(checkpointer, time.monotonic() + 3)
            if self.cluster.control_state() == SHUT_DOWN:
                break
            os.kill(checkpointer, signal.SIGSTOP)
            os.kill(postmaster, signal.SIGCONT)
        check(self.cluster.control_state() == SHUT_DOWN, "the server did not come to its shutdown checkpoint")
        self.cluster.kill_postmaster()

    def others_than(self, *titles):
        """Children that have not ended, but these."""
        return [title for title in self.cluster.children().values() if title and not title.startswith(titles)]

    def kill_when_shut_down(self, checkpointer, until):
        """At once: the checkpointer saves the map as it exits."""
        while time.monotonic() < until:
            if self.cluster.control_state() == SHUT_DOWN:
                time.sleep(self.random.choice([0, 0, 0.01]))
                self.cluster.kill(checkpointer)
                return

    def restart_uncleanly(self):
        """If the map was not saved it is void: anybody may have written to a cluster that was shut down."""
        self.stop_uncleanly()
        self.excused = True
        self.cluster.start()

    # -- what others do to the files while the server is down

    def switch_checksums(self):
        """The map of either stop must be void: pg_checksums wrote past the server."""
        self.random.choice([self.stop_cleanly, self.stop_uncleanly])()
        run([self.cluster.bin / "pg_checksums", "-d" if self.checksums else "-e", "-N", "-D", self.cluster.data])
        self.checksums = not self.checksums
        self.forbidden = "pg_checksums ran"
        self.cluster.start()

    def damage_map(self):
        self.random.choice([self.stop_cleanly, lambda: self.cluster.stop("immediate")])()
        path = self.cluster.data / "pgstrata.map"
        before = path.read_bytes()
        # what the header counts of it; behind that is what a flush cut short left
        used = int.from_bytes(before[32:36], "little") * MAP_PAGE
        check(used <= len(before), f"the map has {len(before)} bytes, and counts {used}")
        if used <= MAP_PAGE:
            # a history that has just begun, which forgot all tokens
            self.cluster.start()
            return
        how = self.random.choice(["truncated", "a page zeroed", "a bit flipped"])
        after = bytearray(before)
        if how == "truncated":
            after = after[:self.random.randrange(used)]
        elif how == "a page zeroed":
            at = self.random.choice([at for at in range(0, used, MAP_PAGE) if any(before[at:at + MAP_PAGE])])
            after[at:at + MAP_PAGE] = bytes(MAP_PAGE)
        else:
            at = self.random.choice([i for i in range(MAP_PAGE, used) if before[i]])
            after[at] ^= 1 << self.random.randrange(8)
        with open(path, "r+b") as file:
            file.write(after)
            file.truncate()
        self.forbidden = f"the map was {how}"
        self.cluster.start()

    CRASHES = [kill_backend, kill_backend_in_ddl, kill_backend_in_ddl, kill_backend_in_database_ddl, kill_worker,
               kill_checkpointer, kill_checkpointer_at_work, kill_writer, stop_immediately, stop_immediately,
               stop_immediately_in_checkpoint, kill_postmaster, kill_postmaster, kill_in_recovery,
               restart_uncleanly]
    QUIET = [restart, restart_with_other_settings, toggle_full_page_writes, terminate_worker]
    VOIDING = [switch_checksums, damage_map]
