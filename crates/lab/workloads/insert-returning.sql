-- Inserts a row and uses the key it was given, by \gset. Needs pgbench 12.
\set delta random(-5000, 5000)
INSERT INTO lab_item (status) VALUES (1) RETURNING id \gset item_
UPDATE lab_item SET status = 2, delta = :delta WHERE id = :item_id;
