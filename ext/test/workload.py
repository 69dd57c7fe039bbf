"""Random SQL that writes to relations in every way the server knows.

Sessions are psql processes fed with batches of statements. Statements may
fail, as sessions drop each other's objects and servers crash: what matters is
what reaches the disk.
"""

import random
import subprocess
import threading
import time

from cluster import as_server_user

TABLES = 6
INDEX_KINDS = ["btree (k)", "hash (k)", "gin (words)", "gist (place)", "spgist (place)",
               "brin (k)", "btree (t) INCLUDE (k)", "gin (to_tsvector('simple', t))"]

SETUP = """
CREATE TABLE parts (k int, t text) PARTITION BY RANGE (k);
CREATE TABLE sink (k int, t text, at timestamptz DEFAULT now());
CREATE SEQUENCE seq;
CREATE UNLOGGED TABLE volatile_t (k int, t text);
"""


def table_sql(name, unlogged=False):
    return (f"CREATE {'UNLOGGED ' if unlogged else ''}TABLE IF NOT EXISTS {name} (k int, t text, words int[],"
            " place point, filler text) WITH (fillfactor = 80);")


class Statements:
    """Makes one statement after the other out of a seed."""

    def __init__(self, seed, tablespaces):
        self.random = random.Random(seed)
        self.tablespaces = tablespaces

    def table(self):
        return f"t{self.random.randrange(TABLES)}"

    def tablespace(self):
        return self.random.choice(["pg_default", *self.tablespaces])

    def rows(self, most=2000):
        return self.random.randint(1, most)

    def insert(self):
        return (f"{table_sql(self.table())} INSERT INTO {self.table()} SELECT g, md5(g::text), array[g % 100,"
                f" g % 7], point(g % 1000, g % 77), repeat('f', {self.random.randint(0, 300)})"
                f" FROM generate_series(1, {self.rows()}) g;")

    def update(self):
        column = self.random.choice(["filler = md5(random()::text)", "k = k + 1", "place = point(k, 1)",
                                     "words = array[k % 50]"])
        return f"UPDATE {self.table()} SET {column} WHERE k % {self.random.randint(2, 200)} = 0;"

    def delete(self):
        low = self.random.randrange(2000)
        return f"DELETE FROM {self.table()} WHERE k BETWEEN {low} AND {low + self.random.randrange(800)};"

    def delete_tail(self):
        name = self.table()
        return f"DELETE FROM {name} WHERE ctid > '({self.random.randrange(20)},1)'; VACUUM {name};"

    def read(self):
        return f"SET enable_seqscan = off; SELECT count(*) FROM {self.table()} WHERE k < {self.rows()};"

    def scan(self):
        return f"SELECT count(t) FROM {self.table()};"

    def vacuum(self):
        option = self.random.choice(["", "(FREEZE)", "(FULL)", "(ANALYZE)", "(INDEX_CLEANUP ON)", "(TRUNCATE ON)"])
        return f"VACUUM {option} {self.table()};"

    def create_index(self):
        how = self.random.choice(["", "", "CONCURRENTLY "])
        name = self.table()
        return (f"CREATE INDEX {how}i{self.random.randrange(12)} ON {name} USING"
                f" {self.random.choice(INDEX_KINDS)};")

    def drop_index(self):
        return f"DROP INDEX IF EXISTS i{self.random.randrange(12)};"

    def reindex(self):
        return f"REINDEX {self.random.choice(['TABLE', 'TABLE CONCURRENTLY'])} {self.table()};"

    def cluster(self):
        name = self.table()
        return f"CREATE INDEX c_{name} ON {name} (k); CLUSTER {name} USING c_{name}; DROP INDEX c_{name};"

    def truncate(self):
        return f"TRUNCATE {self.table()};"

    def truncate_in_place(self):
        name = f"inplace{self.random.randrange(3)}"
        return (f"DROP TABLE IF EXISTS {name}; BEGIN; CREATE TABLE {name} AS SELECT g k, md5(g::text) t FROM"
                f" generate_series(1, {self.rows()}) g; TRUNCATE {name}; INSERT INTO {name} SELECT g, 'again'"
                f" FROM generate_series(1, {self.rows(500)}) g; COMMIT;")

    def drop(self):
        return f"DROP TABLE IF EXISTS {self.table()};"

    def set_logged(self):
        return f"ALTER TABLE {self.table()} SET {self.random.choice(['LOGGED', 'UNLOGGED', 'LOGGED'])};"

    def set_tablespace(self):
        return f"ALTER TABLE {self.table()} SET TABLESPACE {self.tablespace()};"

    def large_object(self):
        return (f"SELECT lo_from_bytea(0, decode(repeat('{self.random.randrange(16):x}f', {self.rows(20000)}), 'hex'));"
                " SELECT lo_unlink(oid) FROM pg_largeobject_metadata ORDER BY oid LIMIT 1;")

    def copy(self):
        return (f"COPY sink (k, t) FROM PROGRAM 'seq 1 {self.rows()} | sed s/$/\\\\tcopied/';")

    def partition(self):
        n = self.random.randrange(50)
        return (f"CREATE TABLE part{n} (k int, t text); INSERT INTO part{n} SELECT {n * 100} + g, 'p' FROM"
                f" generate_series(0, 99) g; ALTER TABLE parts ATTACH PARTITION part{n} FOR VALUES FROM"
                f" ({n * 100}) TO ({n * 100 + 100});")

    def drop_partition(self):
        return f"DROP TABLE IF EXISTS part{self.random.randrange(50)};"

    def sequence(self):
        return f"SELECT nextval('seq') FROM generate_series(1, {self.rows(200)});"

    def unlogged(self):
        return f"INSERT INTO volatile_t SELECT g, 'u' FROM generate_series(1, {self.rows(500)}) g;"

    def temporary(self):
        return f"CREATE TEMP TABLE tmp AS SELECT g FROM generate_series(1, {self.rows()}) g; DROP TABLE tmp;"

    def prepared(self):
        name = f"p{self.random.randrange(5)}"
        return (f"BEGIN; INSERT INTO sink (k) SELECT generate_series(1, 50); PREPARE TRANSACTION '{name}';"
                f" {self.random.choice(['COMMIT', 'ROLLBACK'])} PREPARED '{name}';")

    def rollback(self):
        return f"BEGIN; {self.insert()} ROLLBACK;"

    def build_large(self):
        """An index build long enough for a checkpoint to fall into it."""
        name = self.table()
        return (f"CREATE TABLE big AS SELECT g k, md5(g::text) t FROM generate_series(1, 40000) g;"
                f" CREATE INDEX ON big (t); CREATE INDEX ON big USING hash (k);"
                f" DROP TABLE IF EXISTS {name}_big; ALTER TABLE big RENAME TO {name}_big;")

    def checkpoint(self):
        return "CHECKPOINT;"

    def database(self):
        name = f"db{self.random.randrange(3)}"
        what = self.random.randrange(6)
        if what < 3:
            strategy = self.random.choice(["file_copy", "wal_log"])
            return (f"CREATE DATABASE {name} TEMPLATE filled STRATEGY {strategy}"
                    f" TABLESPACE {self.tablespace()};")
        if what < 5:
            return f"ALTER DATABASE {name} SET TABLESPACE {self.tablespace()};"
        return f"DROP DATABASE IF EXISTS {name} WITH (FORCE);"

    def other_database(self):
        return (f"\\connect db{self.random.randrange(3)}\nUPDATE inside SET t = md5(random()::text) WHERE k %"
                f" {self.random.randint(2, 30)} = 0; VACUUM inside;\n\\connect postgres\n")

    COMMON = [insert, update, update, delete, read, scan, vacuum, sequence, unlogged, copy, temporary]
    RARE = [delete_tail, create_index, create_index, drop_index, reindex, cluster, truncate,
            truncate_in_place, drop, set_logged, set_tablespace, large_object, partition, drop_partition,
            prepared, rollback, build_large, checkpoint, database, database, other_database]

    def next(self):
        kind = self.COMMON if self.random.random() < 0.6 else self.RARE
        return self.random.choice(kind)(self)


def set_up(cluster, tablespaces):
    for name in tablespaces:
        place = cluster.scratch.directory(name)
        cluster.sql(f"CREATE TABLESPACE {name} LOCATION '{place}'")
    for statement in SETUP.strip().split("\n"):
        cluster.sql(statement)
    for i in range(TABLES):
        cluster.sql(table_sql(f"t{i}"))
    cluster.sql("CREATE DATABASE filled")
    cluster.psql("CREATE TABLE inside AS SELECT g k, md5(g::text) t FROM generate_series(1, 3000) g;"
                 " CREATE INDEX ON inside (k); CREATE INDEX ON inside USING hash (t)", "filled")


class Load:
    """Sessions that go on until told to stop, whatever happens to the server."""

    def __init__(self, cluster, seed, sessions, tablespaces):
        self.cluster = cluster
        self.stopping = threading.Event()
        self.statements = 0
        self.threads = [threading.Thread(target=self.session, daemon=True,
                                         args=(Statements(seed * 1000 + i, tablespaces),))
                        for i in range(sessions)]
        for thread in self.threads:
            thread.start()

    def session(self, source):
        command = as_server_user([
            self.cluster.bin / "psql", "-X", "-q", "-At", "-h", self.cluster.scratch.path, "-p",
            self.cluster.port, "-U", "postgres", "-d", "postgres"])
        while not self.stopping.is_set():
            batch = [source.next() for _ in range(10)]
            self.statements += len(batch)
            text = "SET statement_timeout = '20s'; SET lock_timeout = '2s';\n" + "\n".join(batch)
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, text=True, cwd="/tmp")
            try:
                process.communicate(text, timeout=90)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                process.kill()
                process.wait()
            if process.returncode != 0:
                time.sleep(0.1)

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
