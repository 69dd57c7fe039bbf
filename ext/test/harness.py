"""What the tests of behaviour have in common.

Each test is a function named after the fact that it shows. It gets a fresh
cluster, a copy of one that was initialised once. What is printed is TAP, the
Test Anything Protocol (https://testanything.org), so that prove(1) can run it.
"""

import argparse
import pathlib
import textwrap
import time
import traceback

from cluster import Cluster, Failure, Scratch, check, copy_relations, run
from compare import compare

TESTS = []


def test(function):
    TESTS.append(function)
    return function


def fill(cluster, rows=3000):
    cluster.sql(f"CREATE TABLE t AS SELECT g k, repeat('x', 300) filler FROM generate_series(1, {rows}) g")
    cluster.sql("VACUUM (FREEZE) t")


def started(cluster, settings=""):
    """A running cluster with a table and a token."""
    cluster.configure(settings)
    cluster.start()
    cluster.create_extension()
    fill(cluster)
    cluster.sql("CHECKPOINT")
    return cluster.bump()


def eventually(ask, is_so):
    """The first answer that is so; after half a minute whatever it is."""
    until = time.monotonic() + 30
    while not is_so(told := ask()) and time.monotonic() < until:
        time.sleep(0.05)
    return told


def told_after_start(ask):
    """The server answers before the tracker's worker has done its part of a start."""
    return eventually(ask, lambda why: "has not proved the storage tables yet" not in why)


def check_known(cluster, token):
    why = told_after_start(lambda: cluster.unknown(token))
    check(why == "", f"token should be known: {why}")


def check_void(cluster, token, *reasons):
    """The token is unknown, the state tells why, and tracking goes on."""
    check(cluster.unknown(token) != "", "token should be unknown")
    why = cluster.history_reason()
    check(why in reasons, f"history began because \"{why}\", not because of {reasons}")
    refusal = told_after_start(cluster.reason)
    check(refusal == "", f"tracker refuses: {refusal}")
    check(cluster.psql(f"SELECT * FROM pgstrata.changes('{token}')", check=False).returncode != 0,
          "changes() answered for an unknown token")
    check_known(cluster, cluster.bump())


def check_marked(cluster, token, blocks):
    """These blocks of t are in the answer."""
    changes = cluster.changes(token)
    path = cluster.sql("SELECT pg_relation_filepath('t')")
    for block in blocks:
        check(changes.has(path, "main", 0, block), f"block {block} of t is not among the changes")


def update_block(cluster, block):
    cluster.sql(f"UPDATE t SET filler = filler WHERE ctid >= '({block},0)' AND ctid < '({block + 1},0)' AND k % 7 = 0")


def crash_child(cluster, pid):
    """The server notices, ends all others, and recovers."""
    cluster.kill(pid)
    until = time.monotonic() + 30
    while pathlib.Path(f"/proc/{pid}").exists():
        check(time.monotonic() < until, f"process {pid} is not gone")
        time.sleep(0.01)
    cluster.wait_ready()


def compare_now(cluster, token, old):
    # autovacuum does not rest: what was written before the copy is marked after it
    new = cluster.scratch.path / "compare-new"
    copy_relations(cluster.data, new)
    result = compare(old, new, cluster.changes(token))
    check(not result.missed, f"missed: {result.missed[:5]}; {result}")
    return result


def run_test(number, function, template, keep):
    major = template.major
    name = f"{number} - {function.__name__} on {major}"
    scratch = Scratch(f"behaviour{major}")
    cluster = Cluster(scratch, major, port=5200 + major)
    run(["cp", "-a", template.data, cluster.data])
    cluster.configure(f"unix_socket_directories = '{scratch.path}'\nport = {cluster.port}\n")
    began = time.monotonic()
    try:
        function(cluster)
        print(f"ok {name} ({time.monotonic() - began:.1f} s)", flush=True)
        return True
    except Exception as failure:
        what = failure if isinstance(failure, Failure) else traceback.format_exc()
        print(f"not ok {name}\n" + textwrap.indent(str(what), "# "), flush=True)
        return False
    finally:
        for data in scratch.path.glob("*/postmaster.pid"):
            run([cluster.bin / "pg_ctl", "-D", data.parent, "-m", "immediate", "stop"], check=False)
        if not keep:
            scratch.remove()


def main(description):
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("majors", nargs="+", type=int)
    parser.add_argument("--only", default="", help="tests whose name has this")
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    wanted = [function for function in TESTS if arguments.only in function.__name__]
    print(f"TAP version 13\n1..{len(wanted) * len(arguments.majors)}", flush=True)
    number = failed = 0
    for major in arguments.majors:
        template_scratch = Scratch(f"template{major}")
        try:
            template = Cluster(template_scratch, major)
            template.initialize(settings="synchronous_commit = on\n")
            for function in wanted:
                number += 1
                failed += not run_test(number, function, template, arguments.keep)
        finally:
            template_scratch.remove()
    return 1 if failed or not number else 0
