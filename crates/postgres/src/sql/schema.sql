-- The tables, functions and rights of one network in one database.
--
-- {owner}, {nodes}, {guests} and {auditors} stand for roles that cannot log in: the owner of everything here, the
-- groups of all nodes, of all invitations, and of those who may read everything. A node writes only the leaves of
-- its own streams, and reads only what is addressed to it; whatever else it may do is one of the functions below,
-- which ask who the session's role is. They run as the owner: each names its tables' schema by its search_path, in
-- which nobody else can create anything, and names made of words are quoted (%I, %L).

CREATE SCHEMA adit AUTHORIZATION {owner};
SET LOCAL ROLE {owner};
SET LOCAL search_path = adit, pg_temp;

-- The network's constants. `mac` covers the rest under the network's key, which the database never sees.
CREATE TABLE network (
    one             boolean PRIMARY KEY DEFAULT true CHECK (one),
    version         integer NOT NULL,
    tag             text    NOT NULL,       -- part of the roles' names
    network4        cidr,
    network6        cidr,
    leaf_space      name,                   -- a tablespace for the leaves
    mac             bytea   NOT NULL,
    generation      integer NOT NULL DEFAULT 1  -- of the key that `mac` is under; says where to look, and is not trusted
);

-- The network's settings, a row for each change; the newest is in force. Node 1 has signed each (key/settings.rs): others' rows are
-- not trusted. Rows are never removed: `verify` judges an epoch by the settings that it names.
CREATE TABLE settings (
    serial          bigint  PRIMARY KEY CHECK (serial BETWEEN 1 AND 1024),
    made            bigint  NOT NULL,       -- Unix time, by the owner's clock
    packet_size     integer NOT NULL,       -- longest IP packet, bytes
    audit           text    NOT NULL,       -- full, headers, metadata or none
    durability      text    NOT NULL,       -- strict, relaxed or volatile
    retention_bytes bigint  NOT NULL,       -- of all leaves together
    retention_age   interval NOT NULL,
    auditor_key     bytea,
    previous        bytea   NOT NULL,       -- hash of the row before
    signature       bytea   NOT NULL
);

-- The nodes. `mac` covers id, name, addresses, subnets, keys and whether the node was removed, under the network's key. A number is
-- never given twice; the name and the addresses of a removed node can be another's.
CREATE TABLE node (
    id         integer PRIMARY KEY CHECK (id BETWEEN 1 AND 32767),
    name       text NOT NULL CHECK (name ~ '^[a-z0-9_]{1,24}$'),
    label      text,                        -- for people, once another node has the name
    role       name NOT NULL UNIQUE,
    address4   inet,
    address6   inet,
    subnets    cidr[]  NOT NULL DEFAULT '{}',
    sign_key   bytea,
    seal_key   bytea,
    mac        bytea,                       -- null until the node has registered
    may_invite boolean NOT NULL DEFAULT false,
    joined     timestamptz NOT NULL DEFAULT now(),
    removed    timestamptz
);
CREATE UNIQUE INDEX node_name ON node (name) WHERE removed IS NULL;
CREATE UNIQUE INDEX node_address4 ON node (address4) WHERE removed IS NULL;
CREATE UNIQUE INDEX node_address6 ON node (address6) WHERE removed IS NULL;

-- The network's keys after the first. `record` is what the network's owner, node 1, signed: see key/rekey.rs.
CREATE TABLE rekey (
    generation integer PRIMARY KEY CHECK (generation > 1),
    made       timestamptz NOT NULL DEFAULT statement_timestamp(),
    record     bytea NOT NULL,
    signature  bytea NOT NULL
);

-- A key, wrapped to one reader: a node that was in the network then, or 0 for the auditor.
CREATE TABLE rekey_wrap (
    generation integer NOT NULL REFERENCES rekey ON DELETE CASCADE,
    reader     integer NOT NULL,
    enc        bytea   NOT NULL,
    sealed     bytea   NOT NULL,
    PRIMARY KEY (generation, reader)
);

-- One-time invitations: the role of the name may join once, until then. What the keys are is in token/admission.rs; they are
-- cleared when the node has registered.
CREATE TABLE invitation (
    role    name PRIMARY KEY,
    until   timestamptz NOT NULL,
    node    integer REFERENCES node,        -- the node that used it
    key     bytea,                          -- the invitation's key under the network's: for nodes
    offline bytea,                          -- the network's key under the invitation's, if no node will be running
    asked   bytea,                          -- the joiner's public key
    proof   bytea,                          -- its MAC under the invitation's key
    enc     bytea,                          -- the network's key, wrapped to the joiner's by a node
    sealed  bytea,
    generation integer NOT NULL             -- of the network's key that it was made under
);

-- What one node sends to another. The number is made of both ends' numbers, so that rows and records show by themselves
-- whose they are.
CREATE TABLE stream (
    id       integer PRIMARY KEY,
    sender   integer NOT NULL REFERENCES node,
    receiver integer NOT NULL REFERENCES node,
    UNIQUE (sender, receiver),
    CHECK (sender <> receiver),
    CHECK (id = sender * 65536 + receiver)
);

-- Which session writes a node's streams: the one that holds the advisory lock with this number. Each session draws
-- another number, so that no other role can take the lock beforehand.
CREATE TABLE writer (
    node integer PRIMARY KEY REFERENCES node,
    lock bigint  NOT NULL
);

-- The sessions that write, each of its node's own role: a lock that another role holds says nothing.
CREATE VIEW writing AS
    SELECT w.node, a.pid
    FROM writer w JOIN node n ON n.id = w.node
    JOIN pg_locks k ON k.locktype = 'advisory' AND k.granted AND k.objsubid = 1
        AND k.classid::bigint = (w.lock >> 32) & 4294967295 AND k.objid::bigint = w.lock & 4294967295
        AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    JOIN pg_stat_activity a ON a.pid = k.pid AND a.usename = n.role;

-- A sender's packets lie in leaves, table packet_SENDER_NO each, one after the other, for all receivers.
CREATE TABLE leaf (
    sender    integer NOT NULL REFERENCES node,
    no        integer NOT NULL,
    durable   boolean NOT NULL,
    opened    timestamptz NOT NULL DEFAULT statement_timestamp(),
    closed    timestamptz,                  -- when the next one was opened
    dropped   timestamptz,                  -- when its packets and keys were
    keys      bigint  NOT NULL DEFAULT 0,   -- bytes of its epochs' records and wraps
    PRIMARY KEY (sender, no)
);

-- A key's time. It never reaches beyond a leaf. `record` is what the sender signed: see key/record.rs.
CREATE TABLE epoch (
    stream    integer NOT NULL REFERENCES stream,
    no        integer NOT NULL,
    leaf      integer NOT NULL,             -- of the stream's sender
    first_seq bigint  NOT NULL,
    opened    timestamptz NOT NULL DEFAULT statement_timestamp(),
    record    bytea   NOT NULL,
    signature bytea   NOT NULL,
    PRIMARY KEY (stream, no)
);

-- The epoch's secret, wrapped to one reader: a node, or 0 for the auditor. Dropped with the leaf; copies of the database keep them.
CREATE TABLE wrap (
    stream integer NOT NULL,
    epoch  integer NOT NULL,
    reader integer NOT NULL,
    enc    bytea   NOT NULL,
    sealed bytea   NOT NULL,
    PRIMARY KEY (stream, epoch, reader),
    FOREIGN KEY (stream, epoch) REFERENCES epoch
);

-- How far the sender has signed an epoch's chain, at most a second after its rows: see key/checkpoint.rs.
CREATE TABLE checkpoint (
    stream    integer NOT NULL,
    epoch     integer NOT NULL,
    seq       bigint  NOT NULL,
    chain     bytea   NOT NULL CHECK (octet_length(chain) = 32),
    signature bytea   NOT NULL CHECK (octet_length(signature) = 64),
    PRIMARY KEY (stream, epoch),
    FOREIGN KEY (stream, epoch) REFERENCES epoch ON DELETE CASCADE
) WITH (fillfactor = 50);

-- The parent of all leaves; has no rows of its own. A row is a packet. Which columns are null is the audit policy's.
CREATE TABLE packet (
    seq     bigint  NOT NULL,
    ts      timestamptz NOT NULL DEFAULT statement_timestamp(),
    stream  integer NOT NULL,
    epoch   integer NOT NULL,
    len     integer,                        -- of the IP packet
    sport   integer,
    dport   integer,
    proto   smallint,                       -- IP protocol
    flags   smallint,                       -- TCP flags
    src     inet,
    dst     inet,
    tag     bytea   NOT NULL,               -- of the AEAD, 16 bytes
    chain   bytea,                          -- on the last row of a batch: MAC over all rows up to here
    payload bytea   NOT NULL
);
-- All of a row lies in one page: leaves inherit this, and so have no table beside them for what is too long.
ALTER TABLE packet ALTER src SET STORAGE PLAIN, ALTER dst SET STORAGE PLAIN, ALTER tag SET STORAGE PLAIN, ALTER chain SET STORAGE PLAIN,
                   ALTER payload SET STORAGE PLAIN;

-- For people: who to whom instead of a number.
CREATE VIEW log AS
    SELECT p.ts, coalesce(f.label, f.name) AS "from", coalesce(t.label, t.name) AS "to", p.len, p.proto, p.src, p.sport, p.dst, p.dport, p.flags,
           p.stream, p.seq, p.epoch, p.payload
    FROM packet p JOIN stream s ON s.id = p.stream JOIN node f ON f.id = s.sender JOIN node t ON t.id = s.receiver;

-- The node whose session this is; null for everybody else.
CREATE FUNCTION me() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = adit, pg_temp
RETURN (SELECT id FROM node WHERE role = session_user AND removed IS NULL);

-- Whether the session may change the network: a member of the owner's role, or (where that suffices) a node that may invite.
CREATE FUNCTION rules(nodes_too boolean) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = adit, pg_temp
RETURN pg_has_role(session_user, {owner_text}, 'MEMBER')
    OR nodes_too AND EXISTS (SELECT FROM node WHERE role = session_user AND may_invite AND removed IS NULL);

-- A password as it is stored: nobody's password travels in the clear or comes into the server's log.
CREATE FUNCTION check_verifier(verifier text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = adit, pg_temp AS $$
BEGIN
    IF verifier IS NULL OR verifier !~ '^SCRAM-SHA-256\$[0-9]{4,6}:[A-Za-z0-9+/=]{16,64}\$[A-Za-z0-9+/]{43}=:[A-Za-z0-9+/]{43}=$' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'not a SCRAM verifier';
    END IF;
END $$;

-- Drops the roles of invitations that are over. (The session of one that is just being used cannot drop its own.)
CREATE FUNCTION forget_invitations() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
DECLARE
    old record;
BEGIN
    FOR old IN SELECT i.role FROM invitation i WHERE (i.node IS NOT NULL OR i.until < now()) AND i.role <> session_user FOR UPDATE SKIP LOCKED LOOP
        BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = old.role) THEN
                EXECUTE format('DROP ROLE %I', old.role);
            END IF;
        EXCEPTION WHEN dependent_objects_still_exist OR object_in_use THEN
            -- Somebody has given it more than we did: theirs to clear up.
            EXECUTE format('ALTER ROLE %I NOLOGIN', old.role);
        END;
        DELETE FROM invitation WHERE role = old.role;
    END LOOP;
END $$;

-- Refuses an invitation that was made under a former key of the network: no node gives the new one for it.
CREATE FUNCTION check_invitation() RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = adit, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM invitation i, network w WHERE i.role = session_user AND i.generation <> w.generation) THEN
        RAISE insufficient_privilege USING MESSAGE = 'the network has got a new key since this invitation was made: make another one (adit postgres invite)';
    END IF;
END $$;

-- Makes an invitation's role. `verifier` is the SCRAM verifier of the one-time secret.
CREATE FUNCTION invite(verifier text, valid interval, for_nodes bytea, for_token bytea, under integer) RETURNS name
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
DECLARE
    who name;
BEGIN
    IF NOT rules(true) THEN
        RAISE insufficient_privilege USING MESSAGE = 'this node may not invite others: run invite on the machine that ran init';
    END IF;
    PERFORM check_verifier(verifier);
    IF valid IS NULL OR valid < '1 minute' OR valid > '30 days' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'an invitation is valid for 1 minute to 30 days';
    END IF;
    IF for_nodes IS NULL OR octet_length(for_nodes) > 256 OR octet_length(for_token) > 256 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'keys of other lengths than theirs';
    END IF;
    IF under IS DISTINCT FROM (SELECT generation FROM network) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the network has just got a new key: run the command again';
    END IF;
    PERFORM forget_invitations();
    IF (SELECT count(*) FROM invitation) >= 100 THEN
        RAISE program_limit_exceeded USING MESSAGE = 'there are 100 open invitations: wait until some are used or over';
    END IF;
    who := format('adit_%s_join_%s', (SELECT tag FROM network), substr(replace(gen_random_uuid()::text, '-', ''), 1, 12));
    EXECUTE format('CREATE ROLE %I LOGIN PASSWORD %L VALID UNTIL %L CONNECTION LIMIT 2 IN ROLE {guests}', who, verifier, now() + valid);
    INSERT INTO invitation (role, until, key, offline, generation) VALUES (who, now() + valid, for_nodes, for_token, under);
    RETURN who;
END $$;

-- Asks the nodes for the network's key, under the invitation's role; asking again replaces the question.
CREATE FUNCTION ask(with_key bytea, with_proof bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
BEGIN
    IF with_key IS NULL OR octet_length(with_key) <> 1216 OR with_proof IS NULL OR octet_length(with_proof) <> 32 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'keys of other lengths than theirs';
    END IF;
    PERFORM check_invitation();
    UPDATE invitation SET asked = with_key, proof = with_proof, enc = NULL, sealed = NULL
        WHERE role = session_user AND node IS NULL AND until > now();
    IF NOT FOUND THEN
        RAISE insufficient_privilege USING MESSAGE = 'this invitation is used up or too old';
    END IF;
    NOTIFY adit_nodes;
END $$;

-- What has been answered, and what needs no answer.
CREATE FUNCTION answered(OUT enc bytea, OUT sealed bytea, OUT offline bytea)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = adit, pg_temp
BEGIN ATOMIC
    SELECT i.enc, i.sealed, i.offline FROM invitation i WHERE i.role = session_user AND i.node IS NULL AND i.until > now();
END;

-- For nodes: the questions that none has answered.
CREATE FUNCTION questions() RETURNS TABLE (role name, key bytea, asked bytea, proof bytea)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = adit, pg_temp
BEGIN ATOMIC
    SELECT i.role, i.key, i.asked, i.proof FROM invitation i
    WHERE me() IS NOT NULL AND i.asked IS NOT NULL AND i.sealed IS NULL AND i.node IS NULL AND i.until > now() LIMIT 16;
END;

-- A node's answer to the question with that proof.
CREATE FUNCTION answer(to_role name, to_proof bytea, with_enc bytea, with_sealed bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
BEGIN
    IF me() IS NULL OR octet_length(with_enc) > 4096 OR octet_length(with_sealed) > 256 THEN
        RAISE insufficient_privilege USING MESSAGE = 'only a node of this network may do that';
    END IF;
    UPDATE invitation SET enc = with_enc, sealed = with_sealed
        WHERE role = to_role AND proof = to_proof AND sealed IS NULL AND node IS NULL;
END $$;

-- The lowest free host address of a network; the first is the network's own.
CREATE FUNCTION free_address(network cidr, taken inet[]) RETURNS inet
LANGUAGE sql STABLE SET search_path = adit, pg_temp
RETURN (SELECT set_masklen(host(network + n)::inet, masklen(network))
        FROM generate_series(1, least(65534, 2::numeric ^ (CASE family(network) WHEN 4 THEN 32 ELSE 128 END - masklen(network)) - 2)::bigint) n
        WHERE NOT host(network + n)::inet = ANY (SELECT host(t)::inet FROM unnest(taken) t WHERE t IS NOT NULL)
        ORDER BY n LIMIT 1);

-- A node stands for what lies behind it, and not for the network itself, for what another stands for, or for what is no
-- place on a network of one's own.
CREATE FUNCTION check_subnets(routed cidr[]) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = adit, pg_temp AS $$
DECLARE
    wrong cidr;
BEGIN
    IF routed IS NULL OR coalesce(array_ndims(routed), 1) <> 1 OR cardinality(routed) > 64 OR array_position(routed, NULL) IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a node has a list of at most 64 networks behind it';
    END IF;
    SELECT r INTO wrong FROM unnest(routed) r
        WHERE masklen(r) < CASE family(r) WHEN 4 THEN 8 ELSE 16 END
           OR r && ANY (ARRAY['0.0.0.0/8', '127.0.0.0/8', '169.254.0.0/16', '224.0.0.0/3', '::/8', 'fe80::/10', 'ff00::/8']::inet[]);
    IF FOUND THEN
        RAISE invalid_parameter_value USING MESSAGE = format('%s cannot lie behind a node: it is too wide, or not a network of one''s own', wrong);
    END IF;
    SELECT r INTO wrong FROM unnest(routed) r, network w WHERE r && w.network4 OR r && w.network6;
    IF FOUND THEN
        RAISE invalid_parameter_value USING MESSAGE = format('%s overlaps the network itself', wrong);
    END IF;
    SELECT a.r INTO wrong FROM unnest(routed) WITH ORDINALITY a(r, n), unnest(routed) WITH ORDINALITY b(r, n) WHERE a.n < b.n AND a.r && b.r;
    IF FOUND THEN
        RAISE invalid_parameter_value USING MESSAGE = format('%s overlaps another of the networks behind this node', wrong);
    END IF;
    SELECT r INTO wrong FROM node n, unnest(n.subnets) s, unnest(routed) r WHERE n.removed IS NULL AND s && r;
    IF FOUND THEN
        RAISE unique_violation USING MESSAGE = format('another node has registered %s, or a part of it', wrong);
    END IF;
END $$;

-- First half of joining: a number and addresses, under the invitation's role (or as a member of the owner's, for the first node).
CREATE FUNCTION reserve(wanted text, routed cidr[], OUT id integer, OUT role name, OUT address4 inet, OUT address6 inet)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
#variable_conflict use_column
DECLARE
    first boolean := rules(false);
BEGIN
    IF NOT first THEN
        PERFORM FROM invitation i WHERE i.role = session_user AND i.node IS NULL AND i.until > now() FOR UPDATE;
        IF NOT FOUND THEN
            RAISE insufficient_privilege USING MESSAGE = 'this invitation is used up or too old';
        END IF;
        PERFORM check_invitation();
    END IF;
    IF wanted IS NULL OR wanted !~ '^[a-z0-9_]{1,24}$' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a name is 1 to 24 lower-case letters, digits and underscores';
    END IF;
    -- One at a time: what is free stays free until it is taken.
    LOCK TABLE node IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM node n WHERE n.name = wanted AND n.removed IS NULL) THEN
        RAISE unique_violation USING MESSAGE = format('there is a node called %s', wanted);
    END IF;
    -- What a removed node of that name has sent stays its own.
    UPDATE node n SET label = n.name || '#' || n.id WHERE n.name = wanted AND n.label IS NULL;
    IF (SELECT count(*) FROM node n WHERE n.removed IS NULL) >= 1024 THEN
        RAISE program_limit_exceeded USING MESSAGE = 'the network has 1024 nodes';
    END IF;
    PERFORM check_subnets(routed);
    -- The role of a removed node stays: its name is not given again. (No name of a node has a hyphen.)
    INSERT INTO node (id, name, role, address4, address6, subnets, may_invite)
    SELECT g.next, wanted,
           'adit_' || w.tag || '_node_' || wanted || CASE WHEN EXISTS (SELECT FROM node n WHERE n.name = wanted) THEN '-' || g.next ELSE '' END,
           free_address(w.network4, (SELECT array_agg(n.address4) FROM node n WHERE n.removed IS NULL)),
           free_address(w.network6, (SELECT array_agg(n.address6) FROM node n WHERE n.removed IS NULL)), routed, first
    FROM network w, (SELECT coalesce(max(n.id), 0) + 1 AS next FROM node n) g
    RETURNING node.id, node.role, node.address4, node.address6 INTO id, role, address4, address6;
    IF EXISTS (SELECT FROM network w WHERE w.network4 IS NOT NULL AND address4 IS NULL OR w.network6 IS NOT NULL AND address6 IS NULL) THEN
        RAISE program_limit_exceeded USING MESSAGE = 'the network has no free address';
    END IF;
    UPDATE invitation i SET node = reserve.id WHERE i.role = session_user;
END $$;

-- Second half: the node's keys under the network's MAC, its role, its streams.
CREATE FUNCTION register(node_id integer, verifier text, sign bytea, seal bytea, proof bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
DECLARE
    who name;
BEGIN
    IF NOT rules(false) AND NOT EXISTS (SELECT FROM invitation WHERE role = session_user AND node = node_id) THEN
        RAISE insufficient_privilege USING MESSAGE = 'this node was reserved by another invitation';
    END IF;
    PERFORM check_verifier(verifier);
    IF octet_length(sign) <> 32 OR octet_length(seal) <> 1216 OR octet_length(proof) <> 32
       OR sign IS NULL OR seal IS NULL OR proof IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'keys of other lengths than theirs';
    END IF;
    UPDATE node SET sign_key = sign, seal_key = seal, mac = proof WHERE id = node_id AND mac IS NULL AND removed IS NULL RETURNING role INTO who;
    IF who IS NULL THEN
        RAISE unique_violation USING MESSAGE = 'this node is registered already';
    END IF;
    EXECUTE format('CREATE ROLE %I LOGIN PASSWORD %L IN ROLE {nodes} CONNECTION LIMIT 8', who, verifier);
    EXECUTE format('CREATE SEQUENCE adit.bell_%s', node_id);
    EXECUTE format('GRANT SELECT ON SEQUENCE adit.bell_%s TO %I', node_id, who);
    EXECUTE format('GRANT USAGE ON SEQUENCE adit.bell_%s TO {nodes}', node_id);
    INSERT INTO stream (id, sender, receiver)
        SELECT a * 65536 + b, a, b FROM (SELECT node_id, id FROM node WHERE id <> node_id AND mac IS NOT NULL AND removed IS NULL) p(a, b)
        UNION ALL
        SELECT id * 65536 + node_id, id, node_id FROM node WHERE id <> node_id AND mac IS NOT NULL AND removed IS NULL;
    IF EXISTS (SELECT FROM invitation WHERE role = session_user) THEN
        EXECUTE format('ALTER ROLE %I NOLOGIN', session_user);
        UPDATE invitation SET key = NULL, offline = NULL, asked = NULL, proof = NULL, enc = NULL, sealed = NULL WHERE role = session_user;
    END IF;
    NOTIFY adit_nodes;
END $$;

-- Adds settings that the owner has signed. The first are added when the network is made.
CREATE FUNCTION change_settings(new_serial bigint, new_made bigint, size integer, policy text, durable text, bytes bigint, age_s bigint,
                                auditor bytea, before bytea, signed bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
BEGIN
    IF me() IS DISTINCT FROM 1 AND NOT rules(false) THEN
        RAISE insufficient_privilege USING MESSAGE = 'only the node that created the network may change its settings';
    END IF;
    IF octet_length(before) <> 32 OR octet_length(signed) <> 64 OR octet_length(auditor) <> 1216 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'keys of other lengths than theirs';
    END IF;
    LOCK TABLE settings IN SHARE ROW EXCLUSIVE MODE;
    IF new_serial IS DISTINCT FROM (SELECT coalesce(max(serial), 0) + 1 FROM settings) THEN
        RAISE unique_violation USING MESSAGE = 'the settings have been changed meanwhile: try again';
    END IF;
    INSERT INTO settings VALUES (new_serial, new_made, size, policy, durable, bytes, age_s * interval '1 second', auditor, before, signed);
    NOTIFY adit_nodes;
END $$;

-- Takes a node out: at once it can read and write nothing more, whatever sessions it has. What it sent stays logged. `proof` is the
-- MAC of its row as a removed node's.
CREATE FUNCTION remove(wanted integer, proof bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
DECLARE
    gone record;
    old record;
BEGIN
    IF NOT rules(true) THEN
        RAISE insufficient_privilege USING MESSAGE = 'this node may not remove others';
    END IF;
    IF octet_length(proof) <> 32 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'keys of other lengths than theirs';
    END IF;
    UPDATE node SET removed = now(), may_invite = false, mac = coalesce(proof, mac)
        WHERE id = wanted AND removed IS NULL RETURNING id, role INTO gone;
    IF NOT FOUND THEN
        RAISE no_data_found USING MESSAGE = 'there is no such node';
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = gone.role) THEN
        EXECUTE format('ALTER ROLE %I NOLOGIN', gone.role);
        EXECUTE format('REVOKE {nodes} FROM %I', gone.role);
        FOR old IN SELECT format('packet_%s_%s', l.sender, l.no) AS name FROM leaf l
                   WHERE l.dropped IS NULL AND l.sender = gone.id LOOP
            IF to_regclass('adit.' || old.name) IS NOT NULL THEN
                EXECUTE format('REVOKE ALL ON adit.%I FROM %I', old.name, gone.role);
            END IF;
        END LOOP;
    END IF;
    NOTIFY adit_nodes;
END $$;

-- First half of a rekey, in one transaction with the second, which begins with it again: from now on no node comes or goes. Returns
-- the generation of the network's key.
CREATE FUNCTION begin_rekey() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
BEGIN
    IF me() IS DISTINCT FROM 1 THEN
        RAISE insufficient_privilege USING MESSAGE = 'only the node that created the network may give it a new key: run rekey on the machine that ran init';
    END IF;
    LOCK TABLE node IN SHARE ROW EXCLUSIVE MODE;
    RETURN (SELECT generation FROM network);
END $$;

-- Second half: the new key, wrapped to each member, and the MACs of all rows under it. Open invitations are over.
CREATE FUNCTION rekey(new_generation integer, signed bytea, by_owner bytea, readers integer[], encs bytea[], sealeds bytea[],
                      nodes integer[], macs bytea[], network_mac bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
BEGIN
    IF new_generation IS DISTINCT FROM begin_rekey() + 1 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the network has just got another key: run the command again';
    END IF;
    IF coalesce(cardinality(readers), 0) NOT BETWEEN 1 AND 1025 OR cardinality(encs) <> cardinality(readers) OR cardinality(sealeds) <> cardinality(readers)
       OR cardinality(macs) IS DISTINCT FROM cardinality(nodes) OR network_mac IS NULL OR octet_length(network_mac) <> 32
       OR octet_length(signed) > 65536 OR octet_length(by_owner) > 256 OR EXISTS (SELECT FROM unnest(macs) m WHERE m IS NULL OR octet_length(m) <> 32)
       OR EXISTS (SELECT FROM unnest(encs, sealeds) w(e, s) WHERE octet_length(e) > 4096 OR octet_length(s) > 256) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a rekey is for at most 1024 nodes and the auditor, with MACs of 32 bytes';
    END IF;
    IF EXISTS (SELECT FROM unnest(readers) r WHERE r <> 0 AND NOT EXISTS (SELECT FROM node WHERE id = r AND mac IS NOT NULL AND removed IS NULL)) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a rekey is for the nodes of the network and the auditor';
    END IF;
    INSERT INTO rekey (generation, record, signature) VALUES (new_generation, signed, by_owner);
    INSERT INTO rekey_wrap SELECT new_generation, r, e, s FROM unnest(readers, encs, sealeds) w(r, e, s);
    UPDATE network SET generation = new_generation, mac = network_mac;
    UPDATE node n SET mac = m.mac FROM unnest(nodes, macs) m(id, mac) WHERE n.id = m.id AND n.mac IS NOT NULL;
    -- (One that is being used at this moment keeps its row; the node that it makes is refused.)
    UPDATE invitation SET key = NULL, offline = NULL, asked = NULL, proof = NULL, enc = NULL, sealed = NULL
        WHERE role IN (SELECT i.role FROM invitation i FOR UPDATE SKIP LOCKED);
    -- A node keeps as many keys.
    DELETE FROM rekey WHERE generation <= new_generation - 256;
    NOTIFY adit_nodes;
END $$;

-- Makes this session the one that writes the node's streams, or names the session that does. The lock on the row of
-- the table lets one session ask at a time; no other role may take it.
CREATE FUNCTION begin_writing(OUT held_by integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
DECLARE
    mine integer := me();
    drawn bigint := ('x' || substr(replace(gen_random_uuid()::text, '-', ''), 1, 16))::bit(64)::bigint;
BEGIN
    IF mine IS NULL THEN
        RAISE insufficient_privilege USING MESSAGE = 'only a node of this network may do that';
    END IF;
    INSERT INTO writer VALUES (mine, 0) ON CONFLICT DO NOTHING;
    PERFORM FROM writer WHERE node = mine FOR UPDATE;
    SELECT w.pid INTO held_by FROM writing w WHERE w.node = mine AND w.pid <> pg_backend_pid() LIMIT 1;
    IF held_by IS NULL THEN
        IF NOT pg_try_advisory_lock(drawn) THEN
            RAISE lock_not_available USING MESSAGE = 'another session holds the lock that was just drawn';
        END IF;
        UPDATE writer SET lock = drawn WHERE node = mine;
    END IF;
END $$;

-- Where a sender goes on in the stream to `receiver`: it may not read what it wrote. `leaf_bytes` and `leaf_age` are null
-- where its newest leaf cannot be continued.
CREATE FUNCTION resume(to_node integer, OUT stream integer, OUT last_seq bigint, OUT last_epoch integer, OUT last_leaf integer,
                       OUT leaf_durable boolean, OUT leaf_bytes bigint, OUT leaf_age interval)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = adit, pg_temp AS $$
#variable_conflict use_column
DECLARE
    me integer := me();
    held leaf;
    present boolean;
BEGIN
    SELECT s.id INTO stream FROM stream s WHERE s.sender = me AND s.receiver = to_node;
    IF stream IS NULL THEN
        RAISE insufficient_privilege USING MESSAGE = 'no stream of this node leads there';
    END IF;
    SELECT coalesce(max(no), 0), coalesce(max(first_seq), 1) - 1 INTO last_epoch, last_seq FROM epoch e WHERE e.stream = resume.stream;
    -- The newest rows lie in the newest epoch's leaf.
    SELECT l.* INTO held FROM epoch e JOIN leaf l ON l.sender = me AND l.no = e.leaf WHERE e.stream = resume.stream AND e.no = last_epoch;
    present := held.no IS NOT NULL AND held.dropped IS NULL AND to_regclass(format('adit.packet_%s_%s', me, held.no)) IS NOT NULL;
    IF present THEN
        EXECUTE format('SELECT greatest($1, max(seq)), max(seq) IS NOT NULL FROM adit.%1$I WHERE stream = $2', format('packet_%s_%s', me, held.no))
            INTO last_seq, present USING last_seq, stream;
    END IF;
    -- A crash empties an unlogged leaf, and with it what is known of the numbers that were given: far beyond them.
    IF NOT present AND NOT held.durable THEN
        last_seq := last_seq + 1099511627776;
    END IF;
    SELECT l.* INTO held FROM leaf l WHERE l.sender = me ORDER BY no DESC LIMIT 1;
    last_leaf := coalesce(held.no, 0);
    leaf_durable := held.durable;
    IF held.closed IS NULL AND held.dropped IS NULL THEN
        leaf_bytes := pg_relation_size(to_regclass(format('adit.packet_%s_%s', me, held.no)));
        leaf_age := statement_timestamp() - held.opened;
    END IF;
END $$;

-- Opens an epoch of one of this node's streams, in the newest leaf or, with the number after it, in a new one. Nodes read a
-- leaf by a view that shows each what is addressed to it.
CREATE FUNCTION open_epoch(of_stream integer, epoch_no integer, leaf_no integer, first bigint, durably boolean,
                           signed bytea, by_sender bytea, readers integer[], encs bytea[], sealeds bytea[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
DECLARE
    from_node integer := of_stream / 65536;
    suffix text := format('%s_%s', of_stream / 65536, leaf_no);
    sender_role name;
    newest leaf;
    space text := coalesce((SELECT format('TABLESPACE %I', leaf_space) FROM network WHERE leaf_space IS NOT NULL), '');
BEGIN
    SELECT f.role INTO sender_role
        FROM stream s JOIN node f ON f.id = s.sender JOIN node t ON t.id = s.receiver
        WHERE s.id = of_stream AND s.sender = me() AND t.removed IS NULL;
    IF sender_role IS NULL THEN
        RAISE insufficient_privilege USING MESSAGE = 'not a stream of this node';
    END IF;
    IF cardinality(readers) > 4 OR cardinality(encs) <> cardinality(readers) OR cardinality(sealeds) <> cardinality(readers)
       OR octet_length(signed) > 4096 OR octet_length(by_sender) > 256
       OR EXISTS (SELECT FROM unnest(encs, sealeds) w(e, s) WHERE octet_length(e) > 4096 OR octet_length(s) > 256) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'an epoch has at most 4 readers and 4096 bytes of record';
    END IF;
    IF EXISTS (SELECT FROM unnest(readers) r WHERE r <> 0 AND NOT EXISTS (SELECT FROM stream WHERE id = of_stream AND r IN (sender, receiver))) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'an epoch is for the ends of its stream and the auditor';
    END IF;
    SELECT l.* INTO newest FROM leaf l WHERE l.sender = from_node ORDER BY no DESC LIMIT 1;
    IF leaf_no = coalesce(newest.no, 0) + 1 THEN
        IF (SELECT count(*) FROM leaf WHERE sender = from_node AND dropped IS NULL) >= 128 THEN
            RAISE program_limit_exceeded USING MESSAGE = 'this node has 128 leaves: have old ones dropped first (adit.expire)';
        END IF;
        UPDATE leaf SET closed = statement_timestamp() WHERE sender = from_node AND no = newest.no AND closed IS NULL;
        INSERT INTO leaf (sender, no, durable) VALUES (from_node, leaf_no, durably);
        -- What was inserted is frozen by the first vacuum that looks at it, and not read again for that.
        EXECUTE format('CREATE %s TABLE adit.packet_%s (CHECK (stream BETWEEN %s AND %s)) INHERITS (adit.packet) WITH (autovacuum_freeze_min_age = 0) %s',
                       CASE WHEN durably THEN '' ELSE 'UNLOGGED' END, suffix, from_node * 65536, from_node * 65536 + 65535, space);
        EXECUTE format('CREATE INDEX ON adit.packet_%s (stream, seq) %s', suffix, space);
        -- The order lets a page be read along the index, without looking at what comes behind it.
        EXECUTE format('CREATE VIEW adit.inbox_%1$s WITH (security_barrier) AS
                        SELECT * FROM adit.packet_%1$s WHERE stream & 65535 = (SELECT adit.me()) ORDER BY stream, seq', suffix);
        EXECUTE format('GRANT INSERT (seq, stream, epoch, len, sport, dport, proto, flags, src, dst, tag, chain, payload) ON adit.packet_%s TO %I',
                       suffix, sender_role);
        EXECUTE format('GRANT SELECT ON adit.packet_%s TO {auditors}', suffix);
        EXECUTE format('GRANT SELECT ON adit.inbox_%s TO {nodes}', suffix);
    ELSIF newest.no IS NULL OR leaf_no <> newest.no OR newest.closed IS NOT NULL OR newest.dropped IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'an epoch opens in the newest leaf or in the one after it';
    END IF;
    -- Each epoch costs kilobytes, of which a connection that comes and goes makes many.
    IF (SELECT e.opened > statement_timestamp() - interval '1 minute' AND e.leaf = leaf_no
        FROM epoch e WHERE e.stream = of_stream ORDER BY no DESC OFFSET 59 LIMIT 1) THEN
        RAISE configuration_limit_exceeded USING MESSAGE = 'this stream has opened 60 epochs in a minute: the next one has to wait';
    END IF;
    -- A record outlives a crash of the database, whatever becomes of its rows: the next one names it.
    PERFORM set_config('synchronous_commit', 'on', true);
    IF (SELECT count(*) FROM epoch WHERE stream = of_stream AND leaf = leaf_no) >= 4096 THEN
        RAISE program_limit_exceeded USING MESSAGE = 'this leaf has 4096 epochs of this stream: the next one opens in a new leaf';
    END IF;
    INSERT INTO epoch (stream, no, leaf, first_seq, record, signature) VALUES (of_stream, epoch_no, leaf_no, first, signed, by_sender);
    INSERT INTO wrap SELECT of_stream, epoch_no, r, e, s FROM unnest(readers, encs, sealeds) w(r, e, s);
    -- What the rows take, with what each row of a table costs beside.
    UPDATE leaf SET keys = keys + 100 + octet_length(signed) + octet_length(by_sender)
            + (SELECT coalesce(sum(80 + octet_length(e) + octet_length(s)), 0) FROM unnest(encs, sealeds) w(e, s))
        WHERE sender = from_node AND no = leaf_no;
END $$;

-- The newest rows of a stream to this node in a leaf, of those behind `after`, up to `until` and, with `late`, too old to be
-- delivered by that many milliseconds. (The view has the other order.)
CREATE FUNCTION newest(of_stream integer, leaf_no integer, after bigint, until bigint, late integer, most bigint) RETURNS SETOF packet
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = adit, pg_temp AS $$
BEGIN
    IF of_stream & 65535 IS DISTINCT FROM me() THEN
        RAISE insufficient_privilege USING MESSAGE = 'not a stream to this node';
    END IF;
    RETURN QUERY EXECUTE format('SELECT * FROM adit.packet_%s_%s WHERE stream = $1 AND seq > $2 AND seq <= $3
                                     AND ($4 IS NULL OR ts < statement_timestamp() - $4 * interval ''1 ms'')
                                 ORDER BY seq DESC LIMIT $5', of_stream / 65536, leaf_no)
        USING of_stream, after, until, late, most;
END $$;

-- Stores a sender's checkpoints, each behind the one before. Of an epoch that has been dropped there is nothing to store.
CREATE FUNCTION sign(streams integer[], epochs integer[], seqs bigint[], chains bytea[], signatures bytea[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
BEGIN
    -- It vouches for rows that are there: nothing is lost with it.
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO checkpoint AS old
        SELECT e.stream, e.no, u.seq, u.chain, u.signature
        FROM unnest(streams, epochs, seqs, chains, signatures) u(stream, epoch, seq, chain, signature)
        JOIN epoch e ON e.stream = u.stream AND e.no = u.epoch
        JOIN stream s ON s.id = e.stream AND s.sender = me()
    ON CONFLICT (stream, epoch) DO UPDATE SET seq = excluded.seq, chain = excluded.chain, signature = excluded.signature
        WHERE old.seq < excluded.seq;
END $$;

-- Bytes of a leaf: its table with the index, and the records and wraps of its epochs.
CREATE FUNCTION size(of_leaf leaf) RETURNS bigint
LANGUAGE sql STABLE SET search_path = adit, pg_temp
RETURN of_leaf.keys + coalesce(pg_total_relation_size(to_regclass(format('adit.packet_%s_%s', of_leaf.sender, of_leaf.no))), 0);

-- Bytes that the leaves take, and how many of them are records and wrapped keys.
CREATE FUNCTION usage(OUT leaves bigint, OUT bytes bigint, OUT keys bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = adit, pg_temp
BEGIN ATOMIC
    SELECT count(*), coalesce(sum(size(l)), 0), coalesce(sum(l.keys), 0) FROM leaf l WHERE dropped IS NULL;
END;

-- Drops leaves beyond the retention, with the keys of their epochs: what is too old; and, while there is too much, the
-- oldest leaf of the node that sends the most, so that a node which floods the log sweeps out its own packets and not the
-- others'. A leaf still written to is kept, and one that somebody reads is left for the next time. Any node may ask: it
-- does no more than the network's retention says.
CREATE FUNCTION expire() RETURNS TABLE (dropped_leaf text, freed bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    old record;
    rest bigint;
    keep settings;
BEGIN
    IF me() IS NULL AND NOT rules(false) THEN
        RAISE insufficient_privilege USING MESSAGE = 'only a node of this network may do that';
    END IF;
    -- One at a time: two would drop twice as much as is too much. (An advisory lock could be held by anybody.)
    PERFORM FROM network FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT * INTO keep FROM settings ORDER BY serial DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- A sender begins a new leaf long before this. One that does not is made to: what it has is then dropped before the others'.
    FOR old IN
        SELECT l.sender, l.no, format('packet_%s_%s', l.sender, l.no) AS name, n.role
        FROM leaf l JOIN node n ON n.id = l.sender
        WHERE l.closed IS NULL AND l.dropped IS NULL AND size(l) > greatest(keep.retention_bytes / 4, 67108864)
    LOOP
        EXECUTE format('REVOKE ALL ON adit.%I FROM %I', old.name, old.role);
        UPDATE leaf SET closed = statement_timestamp() WHERE sender = old.sender AND no = old.no;
    END LOOP;
    SELECT u.bytes INTO rest FROM usage() u;
    FOR old IN
        WITH sized AS (
            SELECT l.sender, l.no, l.closed, l.opened, format('packet_%s_%s', l.sender, l.no) AS name, size(l) AS bytes
            FROM leaf l WHERE l.dropped IS NULL),
        summed AS (
            SELECT *, coalesce(closed, opened) < now() - keep.retention_age AS too_old,
                   sum(bytes) OVER (PARTITION BY sender ORDER BY no DESC) AS from_newest
            FROM sized)
        SELECT * FROM summed d
        WHERE closed IS NOT NULL OR NOT EXISTS (SELECT FROM writing w WHERE w.node = d.sender)
        ORDER BY too_old DESC, from_newest DESC
        LIMIT 500
    LOOP
        EXIT WHEN NOT old.too_old AND rest <= keep.retention_bytes;
        BEGIN
            IF to_regclass('adit.' || old.name) IS NOT NULL THEN
                EXECUTE format('DROP TABLE adit.%I CASCADE', old.name);
            END IF;
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;
        END;
        DELETE FROM wrap w USING epoch e
            WHERE e.stream BETWEEN old.sender * 65536 AND old.sender * 65536 + 65535 AND e.leaf = old.no AND w.stream = e.stream AND w.epoch = e.no;
        UPDATE leaf SET dropped = statement_timestamp(), closed = coalesce(closed, statement_timestamp())
            WHERE sender = old.sender AND no = old.no;
        rest := rest - old.bytes;
        dropped_leaf := old.name;
        freed := old.bytes;
        RETURN NEXT;
    END LOOP;
    -- What is left of a leaf, for a day, for who was about to read it, as long as these are few; and the newest of a stream and
    -- of a sender, from which it goes on.
    DELETE FROM epoch e USING (
            SELECT sender, no, dropped, row_number() OVER (PARTITION BY sender ORDER BY no DESC) AS nth FROM leaf WHERE dropped IS NOT NULL) l
        WHERE l.sender = e.stream / 65536 AND l.no = e.leaf AND (l.dropped < now() - interval '1 day' OR l.nth > 256)
          AND e.no < (SELECT max(n.no) FROM epoch n WHERE n.stream = e.stream);
    DELETE FROM leaf l
        WHERE l.dropped IS NOT NULL AND l.no < (SELECT max(n.no) FROM leaf n WHERE n.sender = l.sender)
          AND (l.dropped < now() - interval '1 day' OR (SELECT count(*) FROM leaf n WHERE n.sender = l.sender AND n.dropped IS NOT NULL AND n.no > l.no) > 256)
          AND NOT EXISTS (SELECT FROM epoch e WHERE e.stream BETWEEN l.sender * 65536 AND l.sender * 65536 + 65535 AND e.leaf = l.no);
    PERFORM forget_invitations();
END $$;

-- Rights. Functions are everybody's unless taken away.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA adit FROM PUBLIC;
GRANT USAGE ON SCHEMA adit TO {nodes}, {guests}, {auditors};
GRANT SELECT ON network TO {guests};
GRANT EXECUTE ON FUNCTION reserve(text, cidr[]), register(integer, text, bytea, bytea, bytea), ask(bytea, bytea), answered() TO {guests};
GRANT SELECT ON network, settings, node, stream, leaf, epoch, wrap, checkpoint, rekey, rekey_wrap TO {nodes}, {auditors};
GRANT SELECT ON packet, log TO {auditors};
GRANT EXECUTE ON FUNCTION me(), usage() TO {nodes}, {auditors};
GRANT EXECUTE ON FUNCTION begin_rekey(), rekey(integer, bytea, bytea, integer[], bytea[], bytea[], integer[], bytea[], bytea),
    invite(text, interval, bytea, bytea, integer), questions(), answer(name, bytea, bytea, bytea), remove(integer, bytea), begin_writing(), resume(integer), expire(),
    change_settings(bigint, bigint, integer, text, text, bigint, bigint, bytea, bytea, bytea),
    newest(integer, integer, bigint, bigint, integer, bigint),
    sign(integer[], integer[], bigint[], bytea[], bytea[]),
    open_epoch(integer, integer, integer, bigint, boolean, bytea, bytea, integer[], bytea[], bytea[]) TO {nodes};

ALTER TABLE stream ENABLE ROW LEVEL SECURITY;
ALTER TABLE leaf ENABLE ROW LEVEL SECURITY;
ALTER TABLE epoch ENABLE ROW LEVEL SECURITY;
ALTER TABLE wrap ENABLE ROW LEVEL SECURITY;
ALTER TABLE checkpoint ENABLE ROW LEVEL SECURITY;
ALTER TABLE rekey ENABLE ROW LEVEL SECURITY;
ALTER TABLE rekey_wrap ENABLE ROW LEVEL SECURITY;
CREATE POLICY ends ON stream TO {nodes} USING ((SELECT me()) IN (sender, receiver));
CREATE POLICY nodes ON leaf TO {nodes} USING ((SELECT me()) IS NOT NULL);
CREATE POLICY ends ON epoch TO {nodes} USING ((SELECT me()) IN (stream / 65536, stream & 65535));
CREATE POLICY ends ON checkpoint TO {nodes} USING ((SELECT me()) IN (stream / 65536, stream & 65535));
CREATE POLICY own ON wrap TO {nodes} USING (reader = (SELECT me()));
CREATE POLICY nodes ON rekey TO {nodes} USING ((SELECT me()) IS NOT NULL);
CREATE POLICY own ON rekey_wrap TO {nodes} USING (reader = (SELECT me()));
CREATE POLICY everything ON stream TO {auditors} USING (true);
CREATE POLICY everything ON leaf TO {auditors} USING (true);
CREATE POLICY everything ON epoch TO {auditors} USING (true);
CREATE POLICY everything ON wrap TO {auditors} USING (true);
CREATE POLICY everything ON checkpoint TO {auditors} USING (true);
CREATE POLICY everything ON rekey TO {auditors} USING (true);
CREATE POLICY everything ON rekey_wrap TO {auditors} USING (true);

INSERT INTO network VALUES (true, {version}, {tag}, NULL, NULL, NULL, '');
