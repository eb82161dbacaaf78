// A peer that speaks AMQP 1.0 as Azure Service Bus is documented to, as far as effectonce's adapter goes: the token
// handshake, queues with locks, delivery counts and duplicate detection, sessions, dead letters, and the management
// operations for renewing, scheduling and peeking. Queues come into being when they are named; those called "missing…" do not.
//
//     node servicebus.js PORT LOCK_SECONDS DEDUP_SECONDS PASSWORD

const crypto = require("crypto");
const net = require("net");
const rhea = require("rhea");

const [port, lockSeconds, dedupSeconds, password] = process.argv.slice(2);
const LOCK = Number(lockSeconds) * 1000;
const DEDUP = Number(dedupSeconds) * 1000;
const DEAD = "/$deadletterqueue";
const MANAGEMENT = "/$management";
const MAX_SIZE = 262144;
const BATCH_FORMAT = 0x80013700;
const SESSION = "com.microsoft:session-filter";

// -- queues

class Queue {
    constructor(name) {
        this.name = name;
        this.messages = []; // in the order of their sequence numbers
        this.seen = new Map(); // message id: when
        this.links = new Set();
        this.sessions = new Map(); // by name: the link that has it, and until when
    }

    fits(link, entry, now) {
        if (link.taken === undefined) return true;
        const own = this.sessions.get(link.taken);
        return own.link === link && own.until > now && entry.message.group_id === link.taken;
    }

    // The next free session with a message to deliver, or this one; undefined: there is none.
    lockSession(link, wanted) {
        const now = Date.now();
        const entry = this.messages.find(({ message, lock, until, due }) => {
            const name = message.group_id;
            const taken = this.sessions.get(name);
            const free = taken === undefined || taken.until <= now;
            return name && free && (wanted ?? name) === name && (lock === null || until <= now) && due <= now;
        });
        if (entry === undefined) return undefined;
        this.sessions.set(entry.message.group_id, { link, until: now + LOCK });
        return entry.message.group_id;
    }

    leaveSession(link) {
        const own = this.sessions.get(link.taken);
        if (own === undefined || own.link !== link) return;
        this.sessions.delete(link.taken);
        for (const entry of this.messages) {
            if (entry.message.group_id === link.taken && entry.lock !== null) this.release(entry);
        }
    }

    static named(name) {
        const key = name.toLowerCase();
        if (key.startsWith("missing")) return undefined;
        if (!Queue.all.has(key)) Queue.all.set(key, new Queue(key));
        return Queue.all.get(key);
    }

    add(message, due = 0) {
        const now = Date.now();
        const id = message.message_id;
        if (id !== undefined && !this.name.endsWith(DEAD)) {
            if (now - (this.seen.get(id) ?? -Infinity) < DEDUP) return 0n; // confirmed, and dropped
            this.seen.set(id, now);
        }
        const sequence = ++Queue.sequence;
        this.messages.push({ message, sequence, due, lock: null, until: 0, count: message.delivery_count || 0 });
        this.deliver();
        return sequence;
    }

    deliver() {
        const now = Date.now();
        for (const entry of this.messages) {
            if (entry.lock !== null && entry.until <= now) {
                entry.lock = null;
                entry.count += 1;
            }
            if (entry.lock !== null || entry.due > now) continue;
            const link = [...this.links].find((each) => each.sendable() && this.fits(each, entry, now));
            if (link === undefined) continue;
            this.links.delete(link); // turn by turn
            this.links.add(link);
            entry.lock = crypto.randomBytes(16);
            entry.until = link.taken === undefined ? now + LOCK : this.sessions.get(link.taken).until;
            const delivery = link.send(stamped(entry), entry.lock);
            delivery.entry = entry;
            delivery.token = entry.lock;
        }
    }

    held(token) {
        const entry = this.messages.find((each) => each.lock !== null && each.lock.equals(token));
        return entry !== undefined && entry.until > Date.now() ? entry : undefined;
    }

    remove(entry) {
        this.messages.splice(this.messages.indexOf(entry), 1);
    }

    release(entry) {
        entry.lock = null;
        entry.count += 1;
        this.deliver();
    }

    bury(entry, reason, description) {
        this.remove(entry);
        const properties = { ...entry.message.application_properties };
        properties.DeadLetterReason = reason;
        properties.DeadLetterErrorDescription = description;
        Queue.named(this.name + DEAD).add({ ...entry.message, application_properties: properties });
    }
}
Queue.all = new Map();
Queue.sequence = 0;

function stamped(entry) {
    return {
        ...entry.message,
        delivery_count: entry.count,
        message_annotations: {
            ...entry.message.message_annotations,
            "x-opt-sequence-number": rhea.types.wrap_long(entry.sequence),
            "x-opt-enqueued-time": rhea.types.wrap_timestamp(Date.now()),
            "x-opt-locked-until": rhea.types.wrap_timestamp(entry.until || Date.now()),
        },
    };
}

setInterval(() => Queue.all.forEach((queue) => queue.deliver()), 20);

// -- links

const container = rhea.create_container({ id: "peer" });
const links = { autosettle: false, autoaccept: false, credit_window: 0 };
container.sasl_server_mechanisms.enable_anonymous();

function address(text) {
    return (text || "").replace(/^amqps?:\/\/[^/]*\//, "").replace(/^sb:\/\/[^/]*\//, "");
}

function echo(link) {
    link.set_source(link.source);
    link.set_target(link.target);
}

function refuse(link, name) {
    // An attach without source and target, and then the reason: so AMQP says that there is no such node.
    link.close({ condition: "amqp:not-found", description: `The messaging entity '${name}' could not be found.` });
}

container.on("receiver_open", ({ receiver }) => {
    const name = address(receiver.target.address);
    if (name !== "$cbs" && !name.endsWith(MANAGEMENT) && Queue.named(name) === undefined) return refuse(receiver, name);
    echo(receiver);
    return receiver.add_credit(500);
});

container.on("sender_open", ({ sender }) => {
    const name = address(sender.source.address);
    if (name === "$cbs" || name.endsWith(MANAGEMENT)) {
        echo(sender);
        sender.connection.replies = sender.connection.replies || new Map();
        return sender.connection.replies.set(name, sender);
    }
    const queue = Queue.named(name);
    if (queue === undefined) return refuse(sender, name);
    const filter = sender.source.filter;
    if (filter && SESSION in filter) {
        sender.taken = queue.lockSession(sender, filter[SESSION] ?? undefined);
        if (sender.taken === undefined) {
            // The service would wait for one, as long as it was asked to.
            return sender.close({ condition: "com.microsoft:timeout", description: "no session has messages" });
        }
        sender.set_source({ ...sender.source, filter: { [SESSION]: sender.taken } });
        sender.set_target(sender.target);
        sender.local.attach.properties = { "com.microsoft:locked-until-utc": rhea.types.wrap_long(0) };
    } else {
        echo(sender);
    }
    sender.queue = queue;
    return queue.links.add(sender);
});

container.on("sendable", ({ sender }) => sender.queue && sender.queue.deliver());

function gone(sender) {
    if (!sender || !sender.queue) return;
    sender.queue.links.delete(sender);
    if (sender.taken !== undefined) sender.queue.leaveSession(sender);
}
container.on("sender_close", ({ sender }) => gone(sender));
function lost({ connection }) {
    connection.each_link((link) => gone(link));
}
container.on("disconnected", lost);
container.on("connection_close", lost);
for (const kind of ["connection_error", "protocol_error", "error"]) {
    container.on(kind, (context) => console.error(kind, context.error || context));
}

// -- what comes in

container.on("message", ({ message, delivery, receiver }) => {
    const name = address(receiver.target.address);
    receiver.add_credit(1);
    if (name === "$cbs") {
        delivery.accept();
        return authenticate(receiver.connection, message);
    }
    if (name.endsWith(MANAGEMENT)) {
        delivery.accept();
        return manage(receiver.connection, name, message);
    }
    const queue = Queue.named(name);
    for (const each of delivery.format === BATCH_FORMAT ? unpacked(message) : [message]) queue.add(each, dueTime(each));
    return delivery.accept();
});

function dueTime(message) {
    return Number((message.message_annotations || {})["x-opt-scheduled-enqueue-time"] || 0);
}

function unpacked(message) {
    const { multiple, content } = rhea.message.decode(message).body; // rhea gives what it does not know as bytes
    return (multiple ? content : [content]).map((data) => rhea.message.decode(data));
}

function reply(connection, name, request, properties, body) {
    connection.replies.get(name).send({
        correlation_id: request.message_id,
        application_properties: properties,
        body,
    });
}

function authenticate(connection, request) {
    const token = new URLSearchParams(String(request.body).replace(/^SharedAccessSignature /, ""));
    const expected = crypto
        .createHmac("sha256", password)
        .update(`${encodeURIComponent(token.get("sr"))}\n${token.get("se")}`)
        .digest("base64");
    const good = !password || token.get("sig") === expected;
    reply(connection, "$cbs", request, {
        "status-code": rhea.types.wrap_int(good ? 200 : 401),
        "status-description": good ? "OK" : "InvalidSignature: the token has an invalid signature",
    });
}

// -- the management node of a queue

function manage(connection, name, request) {
    const queue = Queue.named(name.slice(0, -MANAGEMENT.length));
    const operation = request.application_properties.operation.replace("com.microsoft:", "");
    const answer = (code, body, condition) =>
        reply(
            connection,
            name,
            request,
            {
                statusCode: rhea.types.wrap_int(code),
                statusDescription: condition || "OK",
                ...(condition ? { errorCondition: rhea.types.wrap_symbol(condition) } : {}),
            },
            body,
        );
    const run = OPERATIONS[operation];
    return run ? run(queue, request.body, answer) : answer(501, {}, "amqp:not-implemented");
}

function swapped(uuid) {
    // The tag of a delivery is its token with the first three groups in little-endian order.
    const other = Buffer.from(uuid);
    other.subarray(0, 4).reverse();
    other.subarray(4, 6).reverse();
    other.subarray(6, 8).reverse();
    return other;
}

const OPERATIONS = {
    "renew-lock": (queue, body, answer) => {
        const entries = body["lock-tokens"].map((token) => queue.held(swapped(token)));
        if (entries.includes(undefined)) return answer(410, {}, "com.microsoft:message-lock-lost");
        for (const entry of entries) entry.until = Date.now() + LOCK;
        const times = entries.map((entry) => entry.until);
        return answer(200, { expirations: rhea.types.wrap_array(times, 0x83) });
    },
    "renew-session-lock": (queue, body, answer) => {
        const own = queue.sessions.get(body["session-id"]);
        if (own === undefined || own.until <= Date.now()) return answer(410, {}, "com.microsoft:session-lock-lost");
        own.until = Date.now() + LOCK;
        for (const entry of queue.messages) {
            if (entry.message.group_id === body["session-id"] && entry.lock !== null) entry.until = own.until;
        }
        return answer(200, { expiration: rhea.types.wrap_timestamp(own.until) });
    },
    "schedule-message": (queue, body, answer) => {
        const numbers = body.messages.map(({ message }) => {
            const decoded = rhea.message.decode(message);
            return queue.add(decoded, dueTime(decoded));
        });
        return answer(200, { "sequence-numbers": rhea.types.wrap_array(numbers.map(Number), 0x81) });
    },
    "peek-message": (queue, body, answer) => {
        const from = Number(body["from-sequence-number"]);
        const found = queue.messages.filter((entry) => entry.sequence >= from).slice(0, body["message-count"]);
        if (found.length === 0) return answer(204, {});
        const messages = found.map((entry) => ({ message: rhea.message.encode(stamped(entry)) }));
        return answer(200, { messages: rhea.types.wrap_list(messages.map((each) => rhea.types.wrap_map(each))) });
    },
};

// -- settlements: the peer's answer is the outcome, or why there is none

function settle({ delivery, sender }, act) {
    const entry = sender.queue && sender.queue.held(delivery.token);
    const { accepted, modified, rejected } = rhea.message;
    if (entry === undefined) {
        const error = { condition: "com.microsoft:message-lock-lost", description: "the lock has expired" };
        return delivery.update(true, rejected({ error }).described());
    }
    const state = delivery.remote_state;
    act(sender.queue, entry, state);
    const outcome = { accepted, modified, rejected }[state.constructor.composite_type]; // an error would be a refusal
    return delivery.update(true, outcome({}).described());
}

container.on("accepted", (context) => settle(context, (queue, entry) => queue.remove(entry)));
container.on("modified", (context) => settle(context, (queue, entry) => queue.release(entry)));
container.on("rejected", (context) =>
    settle(context, (queue, entry, state) => {
        const { DeadLetterReason: reason, DeadLetterErrorDescription: description } = state.error.info;
        queue.bury(entry, reason, description);
    }),
);

net.createServer((socket) => {
    const options = { sender_options: links, receiver_options: { ...links, max_message_size: MAX_SIZE } };
    container.create_connection({ ...options, max_frame_size: 65536 }).accept(socket);
}).listen(Number(port), "127.0.0.1");
