/* ext/sql/pgstrata--1.0--1.1.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION pgstrata UPDATE" to load this file. \quit

CREATE FUNCTION changed_files(token text,
	OUT path text,
	OUT tablespace oid,
	OUT database oid,
	OUT relfilenode oid,
	OUT fork text,
	OUT segment int,
	OUT pages bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pgstrata_changed_files'
LANGUAGE C VOLATILE ROWS 10000;
COMMENT ON FUNCTION changed_files(text) IS
'relation files of all databases with pages that may have changed since the token was made, and how many; reads directories, not files';

-- A file without a relation is of one that was dropped, or is not committed yet.
CREATE FUNCTION changed_relations(token text,
	OUT relation regclass,
	OUT pages bigint,
	OUT bytes bigint)
RETURNS SETOF record
LANGUAGE sql VOLATILE ROWS 1000
BEGIN ATOMIC
	SELECT r.relation, sum(r.pages)::bigint, (sum(r.pages) * current_setting('block_size')::int)::bigint
	FROM (SELECT pg_filenode_relation(f.tablespace, f.relfilenode) AS relation, f.pages
		  FROM changed_files(token) f
		  WHERE f.database = 0 OR
				f.database = (SELECT oid FROM pg_database WHERE datname = current_database())) r
	WHERE r.relation IS NOT NULL
	GROUP BY r.relation
	ORDER BY 2 DESC, r.relation::oid;
END;
COMMENT ON FUNCTION changed_relations(text) IS
'relations of this database, and those shared by all, with pages that may have changed since the token was made, all forks together; the most first; who calls it needs EXECUTE on changed_files(text) too';

CREATE FUNCTION tokens(
	OUT token text,
	OUT made_at timestamptz,
	OUT lsn pg_lsn,
	OUT by_lsn bool)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pgstrata_tokens'
LANGUAGE C VOLATILE ROWS 1000;
COMMENT ON FUNCTION tokens() IS
'the tokens that changes are known from, the oldest first; by_lsn: made for questions by LSN, for nobody in particular';

CREATE FUNCTION drop_token(token text)
RETURNS bool
AS 'MODULE_PATHNAME', 'pgstrata_drop_token'
LANGUAGE C VOLATILE;
COMMENT ON FUNCTION drop_token(text) IS
'forget a token that no backup needs any more; false if it was not known';

CREATE FUNCTION reset()
RETURNS void
AS 'MODULE_PATHNAME', 'pgstrata_reset'
LANGUAGE C VOLATILE;
COMMENT ON FUNCTION reset() IS
'forget all tokens: the history begins anew. For when files were written past the server';

REVOKE ALL ON FUNCTION changed_files(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION changed_relations(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION tokens() FROM PUBLIC;
REVOKE ALL ON FUNCTION drop_token(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION reset() FROM PUBLIC;
