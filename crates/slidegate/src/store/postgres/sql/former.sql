-- Functions that had other arguments in earlier versions.
DROP FUNCTION IF EXISTS @schema@.run(bigint[], int[], bigint[], int[], bigint);
DROP FUNCTION IF EXISTS @schema@.step(bigint[], bigint[], bigint);
DROP FUNCTION IF EXISTS @schema@.keep_sliding_window(bigint[], bigint[], int, bigint, bigint);
DROP FUNCTION IF EXISTS @schema@.keep_fixed_window(bigint[], bigint[], int, bigint, bigint);
DROP FUNCTION IF EXISTS @schema@.view_entries(bigint[], int, bigint[], int, bigint);
DROP FUNCTION IF EXISTS @schema@.keep_entries(bigint[], int, bigint[], bigint[], int, bigint, bigint);
DROP FUNCTION IF EXISTS @schema@.left_until(bigint[], int, bigint);
DROP FUNCTION IF EXISTS
  @schema@.decide_ephemeral(uuid[], int[], int[], bigint[], int[], bigint, int, text),
  @schema@.decide_durable(uuid[], int[], int[], bigint[], int[], bigint, int, text),
  @schema@.peek_ephemeral(uuid[], int[], int[], bigint[], int[], bigint),
  @schema@.peek_durable(uuid[], int[], int[], bigint[], int[], bigint);
-- Before version 6, the record of a token bucket had no capacity, and several objects had other names or results.
DO $$
BEGIN
  IF (SELECT version FROM @schema@.version) < 6 THEN
    DELETE FROM @schema@.ephemeral;
    DELETE FROM @schema@.durable;
    ALTER TABLE IF EXISTS @schema@.note RENAME TO shared_document;
    DROP FUNCTION IF EXISTS @schema@.read_note(bigint), @schema@.write_note(bigint, bigint, text);
    DROP FUNCTION IF EXISTS @schema@.tell_ephemeral(uuid[]), @schema@.tell_durable(uuid[]);
    DROP FUNCTION IF EXISTS @schema@.news_of_ephemeral(), @schema@.news_of_durable();
    DROP TABLE IF EXISTS @schema@.news_ephemeral, @schema@.news_durable;
    DROP FUNCTION IF EXISTS
      @schema@.decide_alike_ephemeral(uuid[], int[], bigint, bigint, bigint, bigint, int, text),
      @schema@.decide_alike_durable(uuid[], int[], bigint, bigint, bigint, bigint, int, text);
    DROP FUNCTION IF EXISTS @schema@.sweep_ephemeral(bigint, bigint), @schema@.sweep_durable(bigint, bigint);
  END IF;
END $$;
