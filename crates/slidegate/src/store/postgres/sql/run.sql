-- Executes the operations on one key in order, with a result for each. `which` are indexes into `op_at`, which are in turn
-- the indexes in `ops` at which the operations begin. `is_invalidation` if any operation is one, see `step`.
CREATE OR REPLACE FUNCTION @schema@.run(rec bigint[], which int[], ops bigint[], op_at int[], now_ms bigint, grain bigint,
  OUT allowed boolean[], OUT before bigint[], OUT sizes int[], OUT after bigint[], OUT expires_ms bigint,
  OUT is_invalidation boolean)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  pos int;
  win bigint;
  lim bigint;
  cost bigint;
  verb bigint;
  quotas bigint;
  age bigint;
  start bigint;
  prev bigint;
  cur bigint;
  used bigint;
  is_known boolean;
  one record;
BEGIN
  is_invalidation := false;
  allowed := '{}';
  before := '{}';
  sizes := '{}';
  FOR i IN 1 .. cardinality(which) LOOP
    pos := op_at[which[i]];
    verb := ops[pos];
    cost := ops[pos + 1];
    quotas := ops[pos + 2];
    is_known := false;
    -- One sliding window from the epoch, the most common policy, is decided in line.
    IF quotas = 1 AND ops[pos + 3] = 1 AND ops[pos + 7] = 0 AND verb <= 2 THEN
      lim := ops[pos + 4];
      win := ops[pos + 5];
      start := now_ms - now_ms % win;
      prev := 0;
      cur := 0;
      IF rec IS NULL THEN
        is_known := true;
      ELSIF cardinality(rec) = 6 AND rec[1] = 1 AND rec[2] = win AND rec[5] >= 0 AND rec[6] >= 0 THEN
        age := now_ms - rec[4];
        IF age >= 0 THEN
          is_known := true;
          IF age < win THEN
            IF rec[5] > 0 OR rec[6] > 0 THEN
              start := rec[4];
              prev := rec[5];
              cur := rec[6];
            END IF;
          ELSIF age < 2 * win AND rec[6] > 0 THEN
            start := rec[4] + win;
            prev := rec[6];
          END IF;
          -- `step` handles products beyond 64 bits.
          is_known := prev <= 4611686018427387904 / win;
        END IF;
      END IF;
    END IF;

    IF is_known THEN
      used := cur;
      IF prev > 0 THEN
        used := cur + (prev * (win - (now_ms - start)) + win - 1) / win;
      END IF;
      before := before || rec;
      sizes := sizes || coalesce(cardinality(rec), 0);
      IF used + cost <= lim THEN
        allowed := allowed || true;
        IF verb = 1 AND cost > 0 THEN
          rec := ARRAY[1, win, 3, start, prev, cur + cost];
          after := rec;
          expires_ms := start + 2 * win;
        END IF;
      ELSE
        allowed := allowed || false;
      END IF;
    ELSE
      one := @schema@.step(rec, ops[pos : pos + 2 + 5 * quotas::int], now_ms, grain);
      allowed := allowed || one.is_allowed;
      before := before || one.before;
      sizes := sizes || coalesce(cardinality(one.before), 0);
      is_invalidation := is_invalidation OR one.is_invalidation;
      IF one.after IS NOT NULL THEN
        after := one.after;
        expires_ms := coalesce(one.expires_ms, now_ms);
        rec := nullif(after, '{}');
      END IF;
    END IF;
  END LOOP;
END $$;
