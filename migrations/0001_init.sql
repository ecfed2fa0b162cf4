-- The D1 index: what lists, the sweep and receipts are read from. Each agent's own state is in its own object; a row here
-- is a copy that may lag, brought by the object's outbox, and written only when its version is newer.

CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The Worker serves only when this is the version it was built for: 503 schema_older or schema_newer otherwise. Each
-- later migration raises it.
INSERT INTO meta (key, value) VALUES ('schema_version', '1');

CREATE TABLE agent (
  tenant TEXT NOT NULL,
  id TEXT NOT NULL,
  status TEXT NOT NULL,
  -- When the agent's earliest timer is due, ms since 1970 UTC. NULL: nothing is armed.
  due_ms INTEGER,
  -- Raised by the agent with each change it reports.
  version INTEGER NOT NULL,
  updated_ms INTEGER NOT NULL,
  -- 1: a tombstone; the agent answers 410.
  deleted INTEGER NOT NULL DEFAULT 0 CHECK (deleted IN (0, 1)),
  PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;

-- The sweep asks for the overdue; idle agents cost it nothing.
CREATE INDEX agent_due ON agent (due_ms) WHERE due_ms IS NOT NULL;

-- GET /v1/agents?status=…
CREATE INDEX agent_status ON agent (tenant, status, id);
