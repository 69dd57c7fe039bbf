-- The SQL surface: shapes, rights, errors, and answers that are the same
-- everywhere.
-- The first version updates to this one, and its functions work until then.
CREATE EXTENSION pgstrata VERSION '1.0';
SELECT known FROM pgstrata.token_status(pgstrata.bump());
SELECT tracking FROM pgstrata.state();
ALTER EXTENSION pgstrata UPDATE;
SELECT extversion = pgstrata.version() AS of_the_library FROM pg_extension WHERE extname = 'pgstrata';
SELECT p.oid::regprocedure AS function, pg_get_function_result(p.oid) AS result,
       has_function_privilege('public', p.oid, 'execute') AS for_all
  FROM pg_proc p WHERE pronamespace = 'pgstrata'::regnamespace ORDER BY p.proname;

-- tracking, from an empty map
SELECT tracking, reason, history_reason, overflow, flush_failures FROM pgstrata.state();

-- tokens
SELECT pgstrata.bump() AS token \gset
SELECT :'token' ~ '^[0-9]+:[0-9a-f]{16}$' AS well_formed;
SELECT * FROM pgstrata.token_status(:'token');
SELECT known, reason LIKE 'the token is not of this history, which began at % because there was no page map' AS explained
  FROM pgstrata.token_status('1:0000000000000000');
SELECT * FROM pgstrata.token_status('rubbish');
SELECT * FROM pgstrata.token_status(:'token' || ' ');
SELECT * FROM pgstrata.token_status('');
\set VERBOSITY sqlstate
SELECT * FROM pgstrata.changes('1:rubbish');
SELECT * FROM pgstrata.change_stat('rubbish');
SELECT count(*) FROM pgstrata.changes(NULL);
\set VERBOSITY default
SELECT * FROM pgstrata.changes('1:rubbish');
SELECT count(*) FROM pgstrata.changes(NULL);
SELECT * FROM pgstrata.change_stat(NULL);
SELECT * FROM pgstrata.token_status(NULL);

-- one changed page of a table is one bit
CREATE TABLE t (k int, filler text) WITH (autovacuum_enabled = off);
INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 70) g;
VACUUM (FREEZE) t;
CHECKPOINT;
SELECT pgstrata.bump() AS token \gset
SELECT pg_relation_filepath('t') AS path \gset
SELECT count(*) FROM pgstrata.changes(:'token') WHERE path = :'path';
DELETE FROM t WHERE k = 30;
CHECKPOINT;
SELECT fork, segment, whole, blocks FROM pgstrata.changes(:'token') WHERE path = :'path' ORDER BY fork;

-- a new relation is whole, all its forks are of their own
SELECT pgstrata.bump() AS token \gset
CREATE TABLE new (k int);
INSERT INTO new VALUES (1);
CHECKPOINT;
SELECT fork, segment, whole, blocks FROM pgstrata.changes(:'token')
 WHERE path = pg_relation_filepath('new');

-- truncation marks what it cut off
SELECT pgstrata.bump() AS token \gset
DELETE FROM t WHERE k > 35;
VACUUM (TRUNCATE) t;
CHECKPOINT;
SELECT fork, segment, whole, blocks FROM pgstrata.changes(:'token')
 WHERE path = :'path' AND fork = 'main';

-- streamed, and the same as in FROM
SELECT count(*) = (SELECT count(*) FROM pgstrata.changes(:'token')) AS same
  FROM (SELECT pgstrata.changes(:'token') AS c OFFSET 0) s;
SELECT files > 0 AS files, pages >= files AS pages, bytes = pages * 8192 AS bytes
  FROM pgstrata.change_stat(:'token');

-- by file and by relation: both say what change_stat() says
SELECT count(*) = files AS files, sum(c.pages) = s.pages AS pages
  FROM pgstrata.changed_files(:'token') c, pgstrata.change_stat(:'token') s GROUP BY files, s.pages;
SELECT path = :'path' AS path, tablespace, fork, segment, pages
  FROM pgstrata.changed_files(:'token')
 WHERE relfilenode = pg_relation_filenode('t')
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY fork;
SELECT relation, pages, bytes FROM pgstrata.changed_relations(:'token') WHERE relation IN ('t'::regclass, 'new'::regclass);
SELECT count(*) AS too_few FROM pgstrata.changed_relations(:'token') WHERE pages < 1;
SELECT count(*) FROM pgstrata.changed_files(NULL);
SELECT count(*) FROM pgstrata.changed_relations(NULL);

-- older tokens are answered, too, and with more
SELECT pgstrata.bump() AS newer \gset
SELECT (SELECT count(*) FROM pgstrata.changes(:'token') WHERE path = :'path') AS older,
       (SELECT count(*) FROM pgstrata.changes(:'newer') WHERE path = :'path') AS newer;

-- a copied database is a directory
SELECT pgstrata.bump() AS token \gset
CREATE DATABASE copied STRATEGY file_copy;
SELECT path = 'base/' || (SELECT oid FROM pg_database WHERE datname = 'copied') AS path,
       fork, segment, whole, blocks
  FROM pgstrata.changes(:'token') WHERE fork IS NULL;
DROP DATABASE copied;

-- tokens can be looked at and dropped one by one, or all
SELECT count(*) AS listed, bool_or(by_lsn) AS by_lsn, bool_and(made_at <= now() + interval '1 minute') AS made,
       bool_and(lsn <= pg_current_wal_insert_lsn()) AS lsn
  FROM pgstrata.tokens() WHERE token IN (:'token', :'newer');
SELECT pgstrata.drop_token(:'newer');
SELECT pgstrata.drop_token(:'newer');
SELECT pgstrata.drop_token('rubbish');
SELECT pgstrata.drop_token(NULL);
SELECT known FROM pgstrata.token_status(:'newer');
SELECT known FROM pgstrata.token_status(:'token');
SELECT (SELECT count(*) FROM pgstrata.tokens()) = tokens AS counted FROM pgstrata.state();
SELECT pgstrata.reset();
SELECT known, reason LIKE 'the token is not of this history, which began at % because it was reset by role "postgres"' AS explained
  FROM pgstrata.token_status(:'token');
SELECT tokens, history_reason FROM pgstrata.state();
SELECT pgstrata.bump() AS token \gset
SELECT known FROM pgstrata.token_status(:'token');

-- rights: not for everybody
CREATE ROLE regress_nobody;
CREATE ROLE regress_backup;
GRANT USAGE ON SCHEMA pgstrata TO regress_nobody, regress_backup;
GRANT EXECUTE ON FUNCTION pgstrata.bump(), pgstrata.state(), pgstrata.token_status(text), pgstrata.changes(text),
      pgstrata.change_stat(text) TO regress_backup;
SET ROLE regress_nobody;
SELECT pgstrata.version();
SELECT pgstrata.bump();
SELECT * FROM pgstrata.state();
SELECT * FROM pgstrata.changes('1:0');
SELECT * FROM pgstrata.change_stat('1:0');
SELECT * FROM pgstrata.token_status('1:0');
SELECT * FROM pgstrata.changed_files('1:0');
SELECT * FROM pgstrata.changed_relations('1:0');
SELECT * FROM pgstrata.tokens();
SELECT pgstrata.drop_token('1:0');
SELECT pgstrata.reset();
SET ROLE regress_backup;
SELECT count(pgstrata.bump());
SELECT tracking FROM pgstrata.state();
SELECT known FROM pgstrata.token_status(:'token');
SELECT count(*) > 0 AS some FROM pgstrata.changes(:'token');
SELECT pgstrata.drop_token(:'token');
SELECT pgstrata.reset();
RESET ROLE;
DROP OWNED BY regress_nobody, regress_backup;
DROP ROLE regress_nobody, regress_backup;

-- the setting is the postmaster's
SHOW pgstrata.map_size;
SET pgstrata.map_size = 1;
SET pgstrata.other = 1;
DROP TABLE t, new;
