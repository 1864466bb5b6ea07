-- Functions that had another shape in earlier versions.
DROP FUNCTION IF EXISTS @schema@.run(bigint[], int[], bigint[], int[], bigint);
DROP FUNCTION IF EXISTS @schema@.step(bigint[], bigint[], bigint);
DROP FUNCTION IF EXISTS @schema@.keep_sliding_window(bigint[], bigint[], int, bigint, bigint);
DROP FUNCTION IF EXISTS @schema@.keep_fixed_window(bigint[], bigint[], int, bigint, bigint);
DROP FUNCTION IF EXISTS @schema@.view_entries(bigint[], int, bigint[], int, bigint);
DROP FUNCTION IF EXISTS @schema@.keep_entries(bigint[], int, bigint[], bigint[], int, bigint, bigint);
DROP FUNCTION IF EXISTS @schema@.left_until(bigint[], int, bigint);
-- Before version 6, a token bucket was kept without its capacity, and the functions of today cannot read it.
DO $$
BEGIN
  IF (SELECT version FROM @schema@.version) < 6 THEN
    DELETE FROM @schema@.ephemeral;
    DELETE FROM @schema@.durable;
  END IF;
END $$;
