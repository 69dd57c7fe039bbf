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
DATABASES = 4
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

    def catalogs(self):
        """Many rows in the catalogs, some of them dead at once, and others dropped later."""
        n, end = self.random.randrange(8), self.random.choice(["COMMIT", "COMMIT", "ROLLBACK"])
        columns = ", ".join(f"column_{i} int DEFAULT {i}" for i in range(self.random.randint(1, 60)))
        return (f"BEGIN; DROP TABLE IF EXISTS many{n}; CREATE TABLE many{n} (k serial PRIMARY KEY, {columns});"
                f" CREATE INDEX ON many{n} (column_0); {end};"
                f" CREATE TEMP TABLE passing AS SELECT * FROM many{n}; DROP TABLE passing;"
                f" SELECT count(*) FROM pg_attribute WHERE attrelid > 16384 AND attname > 'column';"
                f" ALTER TABLE many{n} ADD added{self.random.randrange(9)} text DEFAULT 'x';")

    def view(self):
        n = self.random.randrange(4)
        return (f"CREATE OR REPLACE FUNCTION f{n}() RETURNS int LANGUAGE sql AS 'SELECT {self.rows()}';"
                f" CREATE MATERIALIZED VIEW v{n} AS SELECT k, t, f{n}() FROM sink LIMIT {self.rows(500)};"
                f" REFRESH MATERIALIZED VIEW v{n}; {self.random.choice(['', f'DROP MATERIALIZED VIEW v{n};'])}")

    def toast(self):
        return (f"UPDATE {self.table()} SET filler = (SELECT string_agg(md5(random()::text), '')"
                f" FROM generate_series(1, {self.rows(400)})) WHERE k = {self.random.randrange(50)};")

    def savepoints(self):
        return (f"BEGIN; {self.insert()} SAVEPOINT a; {self.update()} ROLLBACK TO a; {self.delete()}"
                f" SELECT count(*) FROM (SELECT 1 FROM {self.table()} LIMIT 50 FOR UPDATE) locked;"
                f" {self.random.choice(['COMMIT', 'ROLLBACK'])};")

    def vacuum_catalogs(self):
        return (f"VACUUM {self.random.choice(['', '(FREEZE)', '(FULL)'])}"
                f" {self.random.choice(['pg_attribute', 'pg_class', 'pg_depend', 'pg_type'])};")

    def left_prepared(self):
        """It holds its locks until a round's end, or a later statement, ends it."""
        name = f"left{self.random.randrange(2)}"
        return self.random.choice([
            f"BEGIN; INSERT INTO sink (k) SELECT generate_series(1, 50); PREPARE TRANSACTION '{name}';",
            f"COMMIT PREPARED '{name}';", f"ROLLBACK PREPARED '{name}';"])

    def database_name(self):
        return f"db{self.random.randrange(DATABASES)}"

    def create_database(self):
        return (f"CREATE DATABASE {self.database_name()} TEMPLATE filled STRATEGY"
                f" {self.random.choice(['file_copy', 'wal_log'])} TABLESPACE {self.tablespace()};")

    def drop_database(self):
        return f"DROP DATABASE IF EXISTS {self.database_name()} WITH (FORCE);"

    def rename_database(self):
        return f"ALTER DATABASE {self.database_name()} RENAME TO {self.database_name()};"

    def swap_databases(self):
        """While another session waits for one of them."""
        one, other = self.random.sample(range(DATABASES), 2)
        return (f"BEGIN; ALTER DATABASE db{one} RENAME TO swapped; ALTER DATABASE db{other} RENAME TO db{one};"
                f" ALTER DATABASE swapped RENAME TO db{other}; SELECT pg_sleep({self.random.uniform(0, 0.2)});"
                f" {self.random.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])};")

    def move_database(self):
        return f"ALTER DATABASE {self.database_name()} SET TABLESPACE {self.tablespace()};"

    def database(self):
        return self.random.choice([self.create_database, self.create_database, self.drop_database,
                                   self.rename_database, self.swap_databases, self.swap_databases,
                                   self.move_database])()

    def other_database(self):
        """psql ends if it cannot connect, so this is a batch of its own."""
        return (f"\\connect {self.database_name()}\nUPDATE inside SET t = md5(random()::text) WHERE k %"
                f" {self.random.randint(2, 30)} = 0; {self.random.choice(['', 'VACUUM inside;'])}\n")

    COMMON = [insert, update, update, delete, read, scan, vacuum, sequence, unlogged, copy, temporary,
              savepoints, toast]
    DDL = [catalogs, catalogs, catalogs, create_index, create_index, drop_index, reindex, cluster, truncate,
           truncate_in_place, drop, set_logged, set_tablespace, partition, drop_partition, view,
           vacuum_catalogs, rollback]
    RARE = DDL + [delete_tail, large_object, prepared, left_prepared, build_large, checkpoint]
    IN_DATABASES = [database, database, other_database]

    def batch(self, kind, length=8):
        """What one session of psql is fed with."""
        if kind == "databases":
            return [self.random.choice(self.IN_DATABASES)(self) for _ in range(2)]
        common = {"mixed": 0.6, "ddl": 0.2}[kind]
        return [self.random.choice(self.COMMON if self.random.random() < common else
                                   self.DDL if kind == "ddl" else self.RARE)(self) for _ in range(length)]


def set_up(cluster, tablespaces):
    """In tablespaces inside the data directory, so that a copy of it has its own."""
    for name in tablespaces:
        cluster.sql(f"CREATE TABLESPACE {name} LOCATION ''")
    for statement in SETUP.strip().split("\n"):
        cluster.sql(statement)
    for i in range(TABLES):
        cluster.sql(table_sql(f"t{i}"))
        for n, kind in enumerate(INDEX_KINDS):
            if (i + n) % 3 == 0:
                cluster.sql(f"CREATE INDEX first{i}_{n} ON t{i} USING {kind}")
        cluster.sql(f"INSERT INTO t{i} SELECT g, md5(g::text), array[g % 100, g % 7], point(g % 1000, g % 77),"
                    f" repeat('f', 100) FROM generate_series(1, 1000) g")
    cluster.sql("CREATE DATABASE filled")
    cluster.psql("CREATE TABLE inside AS SELECT g k, md5(g::text) t FROM generate_series(1, 3000) g;"
                 " CREATE INDEX ON inside (k); CREATE INDEX ON inside USING hash (t)", "filled")
    for i in range(DATABASES - 1):
        cluster.sql(f"CREATE DATABASE db{i} TEMPLATE filled")


class Load:
    """Sessions that go on until told to stop, whatever happens to the server."""

    def __init__(self, cluster, seed, kinds, tablespaces):
        self.cluster = cluster
        self.stopping = threading.Event()
        self.statements = 0
        self.clients = {}
        if isinstance(kinds, int):
            kinds = ["mixed"] * kinds
        self.threads = [threading.Thread(target=self.session, daemon=True,
                                         args=(Statements(f"{seed}/{i}", tablespaces), kind))
                        for i, kind in enumerate(kinds)]
        for thread in self.threads:
            thread.start()

    def session(self, source, kind):
        command = as_server_user([
            self.cluster.bin / "psql", "-X", "-q", "-At", "-h", self.cluster.scratch.path, "-p",
            self.cluster.port, "-U", "postgres", "-d", "postgres"])
        while not self.stopping.is_set():
            batch = source.batch(kind)
            self.statements += len(batch)
            text = "SET statement_timeout = '10s'; SET lock_timeout = '1s';\n" + "\n".join(batch)
            client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL, text=True, cwd="/tmp")
            self.clients[threading.get_ident()] = client
            try:
                client.communicate(text, timeout=60)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                client.kill()
                client.wait()
            if client.returncode != 0:
                time.sleep(0.1)

    def stop(self, patience=1.0):
        """Whoever does not end soon is left alone by its client."""
        self.stopping.set()
        until = time.monotonic() + patience
        for thread in self.threads:
            thread.join(max(0.0, until - time.monotonic()))
        for thread in self.threads:
            if thread.is_alive():
                self.clients[thread.ident].kill()
                thread.join()
