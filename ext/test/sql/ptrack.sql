-- Functions in the shape of ptrack's, over the same map.
CREATE EXTENSION pgstrata_ptrack;
SELECT ptrack_version();
SELECT p.oid::regprocedure AS function, pg_get_function_result(p.oid) AS result,
       has_function_privilege('public', p.oid, 'execute') AS for_all
  FROM pg_proc p WHERE proname LIKE 'ptrack%' ORDER BY p.proname;
SELECT ptrack_init_lsn() <= pg_current_wal_insert_lsn() AS known_from_before;

CREATE TABLE p (k int, filler text) WITH (autovacuum_enabled = off);
INSERT INTO p SELECT g, repeat('x', 1000) FROM generate_series(1, 70) g;
VACUUM (FREEZE) p;
CHECKPOINT;
SELECT pg_relation_filepath('p') AS path \gset

-- the question makes a token that the next one is answered from
SELECT ptrack_init_lsn() IS NOT NULL AS asked;
SELECT pg_current_wal_insert_lsn() AS lsn \gset
DELETE FROM p WHERE k = 30;
CHECKPOINT;
SELECT pagecount, pagemap FROM ptrack_get_pagemapset(:'lsn') WHERE path = :'path';
SELECT files > 0 AS files, pages >= files AS pages,
       round("size, MB" * 128) = pages AS megabytes
  FROM ptrack_get_change_stat(:'lsn');

-- nothing is known from before the history
SELECT * FROM ptrack_get_pagemapset('0/1');
SELECT * FROM ptrack_get_change_stat('0/1');
SELECT * FROM ptrack_get_pagemapset(NULL);
SELECT * FROM ptrack_get_change_stat(NULL);

CREATE ROLE regress_nobody;
SET ROLE regress_nobody;
SELECT ptrack_init_lsn();
SELECT * FROM ptrack_get_pagemapset('0/1');
RESET ROLE;
DROP ROLE regress_nobody;
DROP TABLE p;
