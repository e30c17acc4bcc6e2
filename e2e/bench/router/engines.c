// Fake guarded vLLM engines: one prefill and one decode server in one epoll thread, with the wire format of vLLM 0.33.
//
//   engines PREFILL_PORT DECODE_PORT
//
// Prefill answers at once; decode streams one chunk per send(), as uvicorn does. Options travel in standard fields, so
// that every router passes them on: max_tokens is the number of content chunks, seed the microseconds between two
// (0: as fast as the peer reads). Delayed chunks of all streams fall on the same tick, as an engine's step does.
//
// Holds are counted as a guarded engine would: made by a finished decode leg that carries a ttl, pulled by a prefill
// leg that keeps them, renewed and released by lease messages. A pull of a hold that is not there, or a hand-off read
// twice, is counted as wrong. GET /stats tells all counts; SIGTERM ends.
#include "common.h"

#include "answers.h"

enum { FIRST_BYTES = 16384, LAST_BYTES = 8192, HEAD_BYTES = 16384, READ_BYTES = 1 << 18, EVENTS = 512 };

typedef enum { IN_HEAD, IN_BODY, IN_ANSWER } State;

typedef struct Conn {
  int fd;
  Role role;
  State state;
  int head_len, first_len, last_len;
  int64_t body_left;
  bool started, closed, bursting, stalled, wants_out, holds;
  int chunks, chunk;            // of the answer: how many, and how many are sent
  uint64_t delay, due;          // nanoseconds
  int heap_at;                  // -1: not in the heap
  char *pending;                // what the peer has not taken yet
  int pending_len, pending_at;
  struct Conn *next_dead;
  char head[HEAD_BYTES + 1], first[FIRST_BYTES + 1], last[LAST_BYTES + 1];
} Conn;

static int epoll_fd;
static volatile sig_atomic_t stopping;
static Conn *dead;

static Conn **burst;  // streams without a delay: each gets one chunk per round
static int burst_len, burst_cap;
static Conn **heap;  // delayed streams by the time of their next chunk
static int heap_len, heap_cap;

// -- the heap of delayed streams

static void heap_put(int at, Conn *c) {
  heap[at] = c;
  c->heap_at = at;
}

static void heap_up(int at) {
  Conn *c = heap[at];
  for (int above; at > 0 && heap[above = (at - 1) / 2]->due > c->due; at = above) heap_put(at, heap[above]);
  heap_put(at, c);
}

static void heap_down(int at) {
  Conn *c = heap[at];
  for (int below; (below = 2 * at + 1) < heap_len; at = below) {
    if (below + 1 < heap_len && heap[below + 1]->due < heap[below]->due) below++;
    if (heap[below]->due >= c->due) break;
    heap_put(at, heap[below]);
  }
  heap_put(at, c);
}

static void heap_add(Conn *c) {
  if (heap_len == heap_cap) heap = need(realloc(heap, (size_t)(heap_cap = heap_cap ? 2 * heap_cap : 1024) * sizeof *heap));
  heap_put(heap_len, c);
  heap_up(heap_len++);
}

static void heap_remove(Conn *c) {
  int at = c->heap_at;
  if (at < 0) return;
  c->heap_at = -1;
  Conn *last = heap[--heap_len];
  if (last == c) return;
  heap_put(at, last);
  heap_up(at);
  heap_down(last->heap_at);
}

static void burst_add(Conn *c) {
  if (burst_len == burst_cap)
    burst = need(realloc(burst, (size_t)(burst_cap = burst_cap ? 2 * burst_cap : 1024) * sizeof *burst));
  burst[burst_len++] = c;
  c->bursting = true;
}

// -- connections

static void drop(Conn *c) {
  if (c->closed) return;
  if (c->state == IN_ANSWER && c->started) counts.aborts++;
  c->closed = true;
  close(c->fd);
  free(c->pending);
  c->pending = NULL;
  heap_remove(c);
  c->next_dead = dead;
  dead = c;
}

static void want_out(Conn *c, bool wanted) {
  if (c->wants_out == wanted) return;
  struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
  c->wants_out = wanted;
}

static void emit(Conn *c, const char *data, int len) {
  if (c->closed) return;
  if (c->pending) {
    c->pending = need(realloc(c->pending, (size_t)(c->pending_len + len)));
    memcpy(c->pending + c->pending_len, data, (size_t)len);
    c->pending_len += len;
    return;
  }
  ssize_t sent = send(c->fd, data, (size_t)len, MSG_NOSIGNAL);
  if (sent < 0 && errno != EAGAIN) {
    drop(c);
    return;
  }
  if (sent < 0) sent = 0;
  if (sent == len) return;
  c->pending = need(malloc((size_t)(len - sent)));
  memcpy(c->pending, data + sent, (size_t)(len - sent));
  c->pending_len = len - (int)sent;
  c->pending_at = 0;
  want_out(c, true);
}

static void flush(Conn *c) {
  while (c->pending) {
    ssize_t sent = send(c->fd, c->pending + c->pending_at, (size_t)(c->pending_len - c->pending_at), MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno != EAGAIN) drop(c);
      return;
    }
    c->pending_at += (int)sent;
    if (c->pending_at == c->pending_len) {
      free(c->pending);
      c->pending = NULL;
      want_out(c, false);
    }
  }
  if (c->stalled) {
    c->stalled = false;
    burst_add(c);
  }
}

static void answer_done(Conn *c) {
  c->state = IN_HEAD;
  c->started = false;
  c->head_len = 0;
}

static void send_chunk(Conn *c) {
  if (c->chunk == 0) {
    c->started = true;
    emit(c, stream_start.text, stream_start.len);
  }
  if (++c->chunk < c->chunks) {
    counts.chunks++;
    emit(c, content_chunk.text, content_chunk.len);
    return;
  }
  counts.chunks++;
  const Text *end = c->holds ? stream_end_held() : &stream_end;
  emit(c, end->text, end->len);
  if (!c->closed) answer_done(c);
}

// -- requests

static const char *field(const Conn *c, const char *name) {
  char key[64];
  int len = snprintf(key, sizeof key, "\"%s\":", name);
  const char *found = memmem(c->last, (size_t)c->last_len, key, (size_t)len);
  if (!found) found = memmem(c->first, (size_t)c->first_len, key, (size_t)len);
  if (!found) return NULL;
  found += len;
  while (*found == ' ') found++;
  return found;
}

static long number(const Conn *c, const char *name, long otherwise) {
  const char *value = field(c, name);
  return value && ((*value >= '0' && *value <= '9') || *value == '-') ? atol(value) : otherwise;
}

static bool is_true(const Conn *c, const char *name) {
  const char *value = field(c, name);
  return value && *value == 't';
}

static void answer(Conn *c, const Text *text) {
  emit(c, text->text, text->len);
  if (!c->closed) answer_done(c);
}

static void start_prefill(Conn *c) {
  counts.prefill++;
  const char *source = field(c, "remote_request_id");
  bool pulls = source && *source == '"';
  if (pulls) pull(source, is_true(c, "keep"));
  answer(c, prefill_answer(pulls));
}

static void start_decode(Conn *c) {
  counts.decode++;
  const char *source = field(c, "remote_request_id");
  if (source && *source == '"')
    read_hand_off(source);
  else
    counts.decode_without_kv++;
  c->holds = number(c, "ttl", 0) > 0;
  c->chunks = (int)number(c, "max_tokens", number(c, "max_completion_tokens", 8));
  if (c->chunks < 1) c->chunks = 1;
  c->delay = (uint64_t)number(c, "seed", 0) * 1000u;
  c->chunk = 0;
  if (!is_true(c, "stream")) {
    answer(c, decode_answer(c->holds));
    return;
  }
  if (!c->delay) {
    burst_add(c);
    return;
  }
  send_chunk(c);
  if (c->closed || c->state != IN_ANSWER) return;
  c->due = (now_ns() / c->delay + 1) * c->delay;
  heap_add(c);
}

static void start_answer(Conn *c) {
  c->first[c->first_len] = c->last[c->last_len] = 0;
  c->state = IN_ANSWER;
  const char *model = field(c, "model");
  if (model && !strncmp(model, "\"duplex-lease\"", 14)) {
    take_lease_message(c->first, c->first_len);
    answer(c, &no_such_model);
  } else if (c->role == PREFILL) {
    start_prefill(c);
  } else {
    start_decode(c);
  }
}

static void get(Conn *c, const char *path) {
  c->state = IN_ANSWER;
  answer(c, page(!strncmp(path, "/stats", 6) ? STATS : !strncmp(path, "/metrics", 8) ? METRICS : OTHER));
}

static void take_head(Conn *c) {
  c->first_len = c->last_len = 0;
  const char *length = header(c->head, "content-length");
  const char *path = strchr(c->head, ' ');
  c->body_left = length ? atoll(length) : 0;
  if (header(c->head, "transfer-encoding") || !path) {
    fprintf(stderr, "engines: a request with a chunked body, or none at all\n");
    drop(c);
  } else if (!strncmp(c->head, "POST", 4) && c->body_left > 0) {
    c->state = IN_BODY;
  } else {
    get(c, path + 1);
  }
}

static void keep_body(Conn *c, const char *data, int len) {
  int room = FIRST_BYTES - c->first_len;
  int take = room < len ? room : len;
  memcpy(c->first + c->first_len, data, (size_t)take);
  c->first_len += take;
  if (len >= LAST_BYTES) {
    memcpy(c->last, data + len - LAST_BYTES, LAST_BYTES);
    c->last_len = LAST_BYTES;
    return;
  }
  int keep = LAST_BYTES - len < c->last_len ? LAST_BYTES - len : c->last_len;
  memmove(c->last, c->last + c->last_len - keep, (size_t)keep);
  memcpy(c->last + keep, data, (size_t)len);
  c->last_len = keep + len;
}

// Takes bytes of a head and returns how many belonged to it.
static int feed_head(Conn *c, const char *data, int len) {
  int room = HEAD_BYTES - c->head_len, take = room < len ? room : len, before = c->head_len;
  if (take == 0) {
    drop(c);
    return len;
  }
  memcpy(c->head + before, data, (size_t)take);
  c->head_len += take;
  c->head[c->head_len] = 0;
  int from = before > 3 ? before - 3 : 0;
  char *end = memmem(c->head + from, (size_t)(c->head_len - from), "\r\n\r\n", 4);
  if (!end) return take;
  end[2] = 0;
  take_head(c);
  return (int)(end + 4 - c->head) - before;
}

static void feed(Conn *c, const char *data, int len) {
  counts.bytes_in += (uint64_t)len;
  while (len > 0 && !c->closed) {
    int used = len;
    if (c->state == IN_ANSWER) {
      fprintf(stderr, "engines: bytes while an answer is under way\n");
      drop(c);
    } else if (c->state == IN_HEAD) {
      used = feed_head(c, data, len);
    } else {
      if (used > c->body_left) used = (int)c->body_left;
      keep_body(c, data, used);
      c->body_left -= used;
      if (c->body_left == 0) start_answer(c);
    }
    data += used;
    len -= used;
  }
}

static void readable(Conn *c) {
  static char buffer[READ_BYTES];
  for (ssize_t got = READ_BYTES; got == READ_BYTES && !c->closed;) {
    got = recv(c->fd, buffer, sizeof buffer, 0);
    if (got > 0)
      feed(c, buffer, (int)got);
    else if (got == 0 || errno != EAGAIN)
      drop(c);
  }
}

static int listen_on(int port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  struct sockaddr_in address = loopback(port);
  if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 4096) < 0) fail("listen");
  return fd;
}

static void accept_all(int listener, Role role) {
  for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
    no_delay(fd);
    Conn *c = need(malloc(sizeof *c));
    memset(c, 0, offsetof(Conn, head));
    c->fd = fd;
    c->role = role;
    c->heap_at = -1;
    counts.connections++;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
  }
}

// -- the loop

static void run_bursts(void) {
  int kept = 0, now = burst_len;
  for (int at = 0; at < now; at++) {
    Conn *c = burst[at];
    if (!c->closed && !c->pending) send_chunk(c);
    c->stalled = !c->closed && c->state == IN_ANSWER && c->pending != NULL;
    c->bursting = !c->closed && c->state == IN_ANSWER && !c->stalled;
    if (c->bursting) burst[kept++] = c;
  }
  for (int at = now; at < burst_len; at++) burst[kept++] = burst[at];
  burst_len = kept;
}

static void run_delayed(void) {
  uint64_t now = now_ns();
  while (heap_len && heap[0]->due <= now) {
    Conn *c = heap[0];
    if (!c->pending) send_chunk(c);
    if (c->closed) continue;
    if (c->state != IN_ANSWER) {
      heap_remove(c);
      continue;
    }
    c->due += c->delay;
    if (c->due < now) c->due = (now / c->delay + 1) * c->delay;
    heap_down(0);
  }
}

static void bury(void) {
  Conn *left = NULL;
  while (dead) {
    Conn *c = dead;
    dead = c->next_dead;
    if (c->bursting) {  // still in the list of bursts, which drops it in its next round
      c->next_dead = left;
      left = c;
    } else {
      free(c);
    }
  }
  dead = left;
}

static int wait_ms(void) {
  if (burst_len) return 0;
  if (!heap_len) return -1;
  uint64_t now = now_ns();
  return heap[0]->due <= now ? 0 : (int)((heap[0]->due - now + 999999) / 1000000);
}

static void stop(int number) {
  (void)number;
  stopping = 1;
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: engines PREFILL_PORT DECODE_PORT\n");
    return 2;
  }
  signal(SIGTERM, stop);
  signal(SIGINT, stop);
  many_files();
  make_answers();
  epoll_fd = epoll_create1(0);
  int listeners[2] = {listen_on(atoi(argv[1])), listen_on(atoi(argv[2]))};
  for (int role = 0; role < 2; role++) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)role};  // no pointer is so small
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listeners[role], &event);
  }
  struct epoll_event events[EVENTS];
  while (!stopping) {
    int count = epoll_wait(epoll_fd, events, EVENTS, wait_ms());
    for (int at = 0; at < count; at++) {
      if (events[at].data.u64 < 2) {
        accept_all(listeners[events[at].data.u64], (Role)events[at].data.u64);
        continue;
      }
      Conn *c = events[at].data.ptr;
      if (!c->closed && (events[at].events & EPOLLOUT)) flush(c);
      if (!c->closed && (events[at].events & ~(uint32_t)EPOLLOUT)) readable(c);
    }
    run_bursts();
    run_delayed();
    bury();
  }
  return 0;
}
