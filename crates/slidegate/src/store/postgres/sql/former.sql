-- They have another shape than in version 1.
DROP FUNCTION IF EXISTS @schema@.run(bigint[], int[], bigint[], int[], bigint);
DROP FUNCTION IF EXISTS @schema@.step(bigint[], bigint[], bigint);
-- And these than in version 3.
DROP FUNCTION IF EXISTS @schema@.keep_sliding_window(bigint[], bigint[], int, bigint, bigint);
DROP FUNCTION IF EXISTS @schema@.keep_fixed_window(bigint[], bigint[], int, bigint, bigint);
