-- They have another shape than in version 1.
DROP FUNCTION IF EXISTS @schema@.run(bigint[], int[], bigint[], int[], bigint);
DROP FUNCTION IF EXISTS @schema@.step(bigint[], bigint[], bigint);
