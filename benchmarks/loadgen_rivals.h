/* The other protocols of loadgen.c: NATS JetStream and Kafka. Included by loadgen.c, whose connections, slots and counters it uses.
 *
 * NATS:  one stream "<topic>" with the subjects "<topic>.<queue>", file storage. A send is a PUB with a reply inbox; its response is JetStream's
 *        acknowledgement. A pull asks a consumer (no acknowledgements) for 32 messages; each lane has a consumer of its own, made anew at the end.
 * Kafka: Produce 7 (acks=1) of one record batch of "batch" records (or one), Fetch 4 of one such batch, CreateTopics 2, ListOffsets 1.
 */
static const char *find(const char *p, size_t n, const char *what) { return memmem(p, n, what, strlen(what)); }

/* ---------- NATS ---------- */
static int nats_line(int fd, char *b, int cap) { int n = 0; while (n < cap - 1) { if (read(fd, b + n, 1) != 1) return -1; if (b[n++] == '\n') break; } b[n] = 0; return n; }
static void nats_write(int fd, const char *b, size_t n) { while (n) { ssize_t k = write(fd, b, n); if (k <= 0) die("NATS: write"); b += k; n -= k; } }
/* Greets the server and subscribes an inbox for each slot; the subscription's number is the slot's, plus one. */
static void nats_open(int fd, long conn, int slots) {
    static const char hello[] = "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true,\"lang\":\"c\",\"version\":\"1\"}\r\n";
    char b[8192]; if (nats_line(fd, b, sizeof b) < 0 || strncmp(b, "INFO ", 5)) { fprintf(stderr, "loadgen: no NATS server\n"); exit(1); }
    nats_write(fd, hello, sizeof hello - 1);
    for (int s = 0; s < slots; s++) { int n = snprintf(b, sizeof b, "SUB _INBOX.%04ld.%04d.* %d\r\n", conn, s, s + 1); nats_write(fd, b, n); }
    nats_write(fd, "PING\r\n", 6);
    do { if (nats_line(fd, b, sizeof b) < 0) die("NATS: no PONG"); } while (strncmp(b, "PONG", 4));
}
/* One request and its JSON response, on the connection that does nothing else. */
static void nats_call(int fd, const char *subject, const char *payload, char *out, size_t cap) {
    char b[4096]; int n = snprintf(b, sizeof b, "PUB %s _INBOX.9999.0000.1 %zu\r\n%s\r\n", subject, strlen(payload), payload); nats_write(fd, b, n);
    for (;;) {
        if (nats_line(fd, b, sizeof b) < 0) die("NATS: no response");
        if (!strncmp(b, "PING", 4)) { nats_write(fd, "PONG\r\n", 6); continue; }
        if (!strncmp(b, "-ERR", 4)) { fprintf(stderr, "loadgen: NATS said %s", b); exit(1); }
        if (strncmp(b, "MSG ", 4) && strncmp(b, "HMSG ", 5)) continue;
        size_t size = strtoul(strrchr(b, ' ') + 1, 0, 10); if (size + 3 > cap || rdn(fd, out, size + 2)) die("NATS: response"); out[size] = 0;
        if (find(out, size, "\"error\"") || b[0] == 'H') { fprintf(stderr, "loadgen: NATS refused %s: %s\n", subject, out); exit(1); }
        return;
    }
}
static void nats_create(int fd) {
    char subject[400], payload[600], out[8192]; snprintf(subject, sizeof subject, "$JS.API.STREAM.CREATE.%s", topic);
    snprintf(payload, sizeof payload, "{\"name\":\"%s\",\"subjects\":[\"%s.*\"],\"storage\":\"file\",\"retention\":\"limits\",\"discard\":\"old\",\"num_replicas\":1,\"max_consumers\":-1,\"max_msgs\":-1,\"max_bytes\":-1,\"max_age\":0}", topic, topic);
    nats_call(fd, subject, payload, out, sizeof out);
}
static int64_t nats_count(int fd) {
    char subject[400], out[8192]; snprintf(subject, sizeof subject, "$JS.API.STREAM.INFO.%s", topic); nats_call(fd, subject, "", out, sizeof out);
    const char *at = find(out, strlen(out), "\"messages\":"); return at ? strtoll(at + 11, 0, 10) : -1;
}
static void nats_tmpl(int q) {
    tmpl_t *t = &tm[q]; char *bd = filler(body); t->p = malloc(600 + body);
    int n = snprintf(t->p, 600, "PUB %s.%d _INBOX.0000.0000.1000000 ", topic, q); t->o_opaque = n - 8; n += snprintf(t->p + n, 40, "%d\r\n", body);
    t->o_body = n; memcpy(t->p + n, bd, body); memcpy(t->p + n + body, "\r\n", 2); t->len = n + body + 2; free(bd);
}
static int nats_consumer_request(char *b, size_t cap, int conn, int slot, int number, const char *inbox) {
    char payload[500]; int n = snprintf(payload, sizeof payload, "{\"stream_name\":\"%s\",\"config\":{\"name\":\"c%08llx-%d-%d-%d\",\"deliver_policy\":\"all\",\"ack_policy\":\"none\",\"replay_policy\":\"instant\",\"mem_storage\":true,\"inactive_threshold\":60000000000}}", topic, (unsigned long long)runid & 0xffffffff, conn, slot, number);
    return snprintf(b, cap, "PUB $JS.API.CONSUMER.CREATE.%s.c%08llx-%d-%d-%d %s %d\r\n%s\r\n", topic, (unsigned long long)runid & 0xffffffff, conn, slot, number, inbox, n, payload);
}
static void nats_consumer(int fd, int conn, int slot, int number) {
    char b[2048], out[8192]; int n = nats_consumer_request(b, sizeof b, conn, slot, number, "_INBOX.9999.0000.1"); nats_write(fd, b, n);
    do { if (nats_line(fd, b, sizeof b) < 0) die("NATS: consumer"); if (!strncmp(b, "PING", 4)) nats_write(fd, "PONG\r\n", 6); } while (strncmp(b, "MSG ", 4));
    size_t size = strtoul(strrchr(b, ' ') + 1, 0, 10); if (size + 3 > sizeof out || rdn(fd, out, size + 2)) die("NATS: consumer"); out[size] = 0;
    if (find(out, size, "\"error\"")) { fprintf(stderr, "loadgen: NATS made no consumer: %s\n", out); exit(1); }
}
static void nats_pull(conn_t *c, int si, uint64_t t0) {
    slot_t *s = &c->s[si]; char *p = room(c, 2048), inbox[64]; snprintf(inbox, sizeof inbox, "_INBOX.%04ld.%04d.%07u", (long)(c - cs), si, new_opaque(c, si)); int n;
    if (s->making) n = nats_consumer_request(p, 2048, c - cs, si, s->wraps, inbox);
    else { char ask[64]; int k = snprintf(ask, sizeof ask, "{\"batch\":%d,\"no_wait\":true}", maxmsgs); n = snprintf(p, 2048, "PUB $JS.API.CONSUMER.MSG.NEXT.%s.c%08llx-%ld-%d-%llu %s %d\r\n%s\r\n", topic, (unsigned long long)runid & 0xffffffff, (long)(c - cs), si, (unsigned long long)s->wraps, inbox, k, ask); }
    c->wlen += n; s->t0 = t0; s->busy = 1; s->got = 0; inflight++;
}
/* The consumer's sequence in "$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>". */
static uint64_t nats_sequence(const char *p, const char *end) { for (int dots = 0; p < end; p++) if (*p == '.' && ++dots == 6) return strtoull(p + 1, 0, 10); return 0; }
static void nats_message(conn_t *c, int si, const char *reply, const char *line_end, const char *data, size_t size, int status, uint64_t now) {
    slot_t *s = &c->s[si]; if (!s->busy) { bad_opaque++; return; }
    if (mode != M_PULL) { int ok = !status && find(data, size, "\"seq\":") && !find(data, size, "\"error\""); complete(c, si, now, ok ? 0 : 1021, 0, size, data, size); return; }
    if (s->making) { s->making = 0; s->busy = 0; inflight--; s->off = s->min; if (find(data, size, "\"error\"")) { fail(1020, data, size); return; } if (!stopping) nats_pull(c, si, now); return; }
    if (status) { s->off = s->max; s->making = 1; complete(c, si, now, 0, s->got, 0, data, size); return; }   /* 404 or 408: no more messages */
    if (nats_sequence(reply, line_end) != s->off + 1) { complete(c, si, now, 1022, 0, size, reply, line_end - reply); return; }
    s->off++; s->got++; bytes_win += size;
    if (s->got == maxmsgs || s->off >= s->max) { if (s->off >= s->max) s->making = 1; complete(c, si, now, 0, s->got, 0, data, size); }
}
/* Takes one message or line off the read buffer; returns its size, 0 if it is not whole yet. */
static size_t nats_take(conn_t *c, const char *p, size_t n, uint64_t now) {
    const char *nl = memchr(p, '\n', n); if (!nl) return 0; size_t head = nl - p + 1;
    if (!strncmp(p, "PING", 4)) { char *w = room(c, 6); memcpy(w, "PONG\r\n", 6); c->wlen += 6; return head; }
    int headers = !strncmp(p, "HMSG ", 5); if (!headers && strncmp(p, "MSG ", 4)) { if (p[0] == '-') fail(1019, p, head); return head; }
    const char *word[6]; int words = 0; for (const char *x = p; x < nl && words < 6;) { word[words++] = x; while (x < nl && *x != ' ') x++; while (x < nl && *x == ' ') x++; }
    int has_reply = words == 5 + headers; if (words < 4 + headers) { bad_opaque++; return head; }
    size_t size = strtoul(word[words - 1], 0, 10), hl = headers ? strtoul(word[words - 2], 0, 10) : 0; if (n < head + size + 2) return 0;
    int si = atoi(word[2]) - 1; if (si < 0 || si >= c->nslots) { bad_opaque++; return head + size + 2; }
    int status = headers && hl > 12 && p[head + 9] >= '1' && p[head + 9] <= '9' ? atoi(p + head + 9) : 0;
    if (!strncmp(word[1], "_INBOX.", 7) && strtoul(word[1] + 17, 0, 10) != c->s[si].opaque) {   /* in pull runs the end of a request that was full before */
        if (mode != M_PULL) bad_opaque++; return head + size + 2;
    }
    nats_message(c, si, has_reply ? word[3] : nl, nl, p + head, size, status, now); return head + size + 2;
}

/* ---------- Kafka ---------- */
#define KAFKA_EXISTS 36
static inline void put64(char *p, uint64_t v) { put32(p, v >> 32); put32(p + 4, (uint32_t)v); }
static uint32_t crc32c(const char *p, size_t n) { uint32_t c = ~0u; while (n--) { c ^= (uint8_t)*p++; for (int k = 0; k < 8; k++) c = c >> 1 ^ (0x82F63B78u & -(c & 1)); } return ~c; }
static char *kstr(char *p, const char *s) { size_t n = strlen(s); put16(p, n); memcpy(p + 2, s, n); return p + 2 + n; }
static char *k32(char *p, uint32_t v) { put32(p, v); return p + 4; }
static char *kvar(char *p, int64_t v) { uint64_t z = (uint64_t)(v << 1) ^ (uint64_t)(v >> 63); while (z > 127) { *p++ = (char)(z | 128); z >>= 7; } *p++ = (char)z; return p; }
static char *khead(char *p, int api, int version, uint32_t correlation) { put16(p + 4, api); put16(p + 6, version); put32(p + 8, correlation); return kstr(p + 12, "loadgen"); }
static char *kafka_call(int fd, char *b, char *end, uint32_t *len) {
    put32(b, end - b - 4); if (write(fd, b, end - b) != end - b || rdn(fd, b, 4)) die("Kafka: no response"); *len = get32(b); if (*len > 4000 || rdn(fd, b, *len)) die("Kafka: response"); return b + 4;
}
static int64_t kafka_offset(int fd, int64_t at, int q) {
    char b[4096], *p = khead(b, 2, 1, 1); uint32_t len; p = k32(p, -1); p = k32(p, 1); p = kstr(p, topic); p = k32(p, 1); p = k32(p, q); put64(p, at); p += 8;
    char *r = kafka_call(fd, b, p, &len) + 4 + 2 + strlen(topic) + 4; if ((int16_t)((uint8_t)r[4] << 8 | (uint8_t)r[5])) return -1; return get64(r + 14);
}
static void kafka_create(int fd) {
    char b[4096], *p = khead(b, 19, 2, 1); uint32_t len; p = k32(p, 1); p = kstr(p, topic); p = k32(p, queues); put16(p, 1); p += 2; p = k32(p, 0); p = k32(p, 0); p = k32(p, 10000); *p++ = 0;
    char *r = kafka_call(fd, b, p, &len) + 8 + 2 + strlen(topic); int code = (uint8_t)r[0] << 8 | (uint8_t)r[1]; if (code && code != KAFKA_EXISTS) { fprintf(stderr, "loadgen: Kafka made no topic: error %d\n", code); exit(1); }
    for (int q = 0; q < queues; q++) { int tries = 0; while (kafka_offset(fd, -1, q) < 0) { if (tries++ > 200) { fprintf(stderr, "loadgen: Kafka gives partition %d no leader\n", q); exit(1); } usleep(50000); } }
}
static size_t kafka_batch(char *to) {
    int n = batch ? batch : 1; char *bd = filler(body), *p = to; memset(p, 0, 61); p[16] = 2; put32(p + 12, -1); put32(p + 23, n - 1); put64(p + 27, wall_ms()); put64(p + 35, wall_ms()); memset(p + 43, 255, 14); put32(p + 57, n); p += 61;
    for (int i = 0; i < n; i++) { char r[64], *x = r; *x++ = 0; x = kvar(x, 0); x = kvar(x, i); x = kvar(x, -1); x = kvar(x, body); size_t k = x - r; p = kvar(p, k + body + 1); memcpy(p, r, k); p += k; memcpy(p, bd, body); p += body; *p++ = 0; }
    put32(to + 8, p - to - 12); put32(to + 17, crc32c(to + 21, p - to - 21)); free(bd); return p - to;
}
static void kafka_tmpl(int q) {
    tmpl_t *t = &tm[q]; t->p = malloc(1000 + (size_t)(batch ? batch : 1) * (body + 32)); char *p = khead(t->p, 0, 7, OPBASE);
    put16(p, -1); put16(p + 2, 1); p = k32(p + 4, 10000); p = k32(p, 1); p = kstr(p, topic); p = k32(p, 1); p = k32(p, q); size_t n = kafka_batch(p + 4); put32(p, n); p += 4 + n;
    t->len = p - t->p; put32(t->p, t->len - 4); t->o_opaque = 8; t->bin_opaque = 1;
}
static void kafka_pull(conn_t *c, int si, uint64_t t0) {
    static size_t size; if (!size) { char *b = malloc(1000 + (size_t)maxmsgs * (body + 32)); int was = batch; batch = maxmsgs; size = kafka_batch(b); batch = was; free(b); }
    slot_t *s = &c->s[si]; char *b = room(c, 1024), *p = khead(b, 1, 4, new_opaque(c, si)); p = k32(p, -1); p = k32(p, 500); p = k32(p, 1); p = k32(p, size); *p++ = 0; p = k32(p, 1); p = kstr(p, topic); p = k32(p, 1); p = k32(p, s->q); put64(p, s->off); p = k32(p + 8, size);
    put32(b, p - b - 4); c->wlen += p - b; s->t0 = t0; s->busy = 1; inflight++;
}
/* Walks the record batches of a Fetch response: each must begin where the one before it ended. */
static int kafka_records(slot_t *s, const char *p, uint32_t n) {
    int count = 0; uint32_t i = 0;
    while (i + 61 <= n) { uint32_t sz = 12 + get32(p + i + 8); if (i + sz > n) break; if (p[i + 16] != 2 || get64(p + i) != s->off) return -1; uint32_t k = get32(p + i + 57); s->off += k; count += k; i += sz; }
    return count;
}
static void kafka_frame(conn_t *c, const char *f, uint32_t len, uint64_t now) {
    uint32_t op = get32(f); if (len < 30 || op < OPBASE || op >= OPBASE + OPSPAN) { bad_opaque++; return; }
    int si = (op - OPBASE) % c->nslots; slot_t *s = &c->s[si]; if (!s->busy || s->opaque != op) { bad_opaque++; return; }
    uint32_t at = 4 + (mode == M_PULL ? 4 : 0) + 4 + 2 + strlen(topic) + 4 + 4; if (at + 2 > len) { bad_opaque++; return; }
    int code = (uint8_t)f[at] << 8 | (uint8_t)f[at + 1]; if (mode != M_PULL) { complete(c, si, now, code, 0, len, f, 0); return; }
    uint32_t r = at + 2 + 8 + 8; if (r + 8 > len) { bad_opaque++; return; } int32_t aborted = (int32_t)get32(f + r); r += 4 + (aborted > 0 ? 16 * aborted : 0); if (r + 4 > len) { bad_opaque++; return; }
    int32_t n = (int32_t)get32(f + r); int k = code || n <= 0 || r + 4 + n > len ? 0 : kafka_records(s, f + r + 4, n); if (!code && k <= 0) code = 1022; complete(c, si, now, code, k, n > 0 ? n : 0, f, 0);
}
