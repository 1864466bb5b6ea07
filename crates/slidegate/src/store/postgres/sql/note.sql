-- What all who share the schema can read and change, such as what operators have decided. It survives a crash.
CREATE TABLE IF NOT EXISTS @schema@.note (
  version bigint NOT NULL,
  text text NOT NULL,
  is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only)
);

-- Nothing if it is the one that is known; 0 is known to whoever has seen none.
CREATE OR REPLACE FUNCTION @schema@.read_note(known bigint, OUT held bigint, OUT held_text text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  SELECT n.version, n.text INTO held, held_text FROM @schema@.note n;
  IF coalesce(held, 0) = known THEN
    held := NULL; held_text := NULL;
  ELSIF held IS NULL THEN
    held := 0; held_text := '';
  END IF;
END $$;

-- Whether it was the one that is known, and so has been changed.
CREATE OR REPLACE FUNCTION @schema@.write_note(known bigint, new_version bigint, new_text text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF known = 0 THEN
    INSERT INTO @schema@.note (version, text) VALUES (new_version, new_text) ON CONFLICT DO NOTHING;
  ELSE
    UPDATE @schema@.note SET version = new_version, text = new_text WHERE version = known;
  END IF;
  RETURN FOUND;
END $$;
