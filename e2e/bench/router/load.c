// A closed loop of HTTP/1.1 clients of a streaming chat API: one epoll thread, keep-alive, one JSON line of results.
//
//   -p PORT -P PATH     where to                      -c N    connections, each with one request at a time
//   -t SECONDS | -n N   how long, or how many         -k US   pause of a client between two requests
//   -m N                content chunks per answer     -d US   between two of them (see engines.c)
//   -b BYTES            size of the user's message    -r N    turns until a client starts another conversation
//   -N                  not streamed                  -i      hold: print READY once each stream has begun, then wait
//
// Each connection has a conversation of its own. Times are in microseconds: to the first byte of the answer's body
// (ttft) and to its end (total). An answer that is not 200, or has other than the expected events, is counted as bad.
#include "common.h"

enum { REQUEST_HEAD = 1024, ANSWER_HEAD = 8192, READ_BYTES = 1 << 18, EVENTS = 512, MANY_ERRORS = 2000, ID_DIGITS = 8 };

typedef enum { RESTING, IN_HEAD, IN_BODY } State;
typedef enum { SIZE_LINE, CHUNK, CHUNK_END, TRAILER } Framing;

typedef struct {
  int fd, number, turn;
  State state;
  Framing framing;
  bool chunked, begun;
  int64_t left;  // of the body, or of the chunk; -1: the body ends with the connection
  int head_len, status, events, newlines;
  uint64_t sent_at, first_at, wake_at;  // wake_at 0: does not rest, or for ever
  char *request;
  int request_len, request_at, id_at[2];
  char head[ANSWER_HEAD + 1];
} Client;

static int epoll_fd, port, connections = 1, chunks = 8, turns = 1 << 30;
static long requests = -1, delay_us, message_bytes, pause_us;
static double seconds = 3;
static const char *path = "/v1/chat/completions";
static bool hold, whole;

static uint64_t done, events, bytes, errors, bad, http_chunks, opened, ends_at;
static long started;
static int begun;
static float *first_us, *total_us;
static size_t samples, sample_cap;
static volatile sig_atomic_t stopping;

// -- requests

static char *message(const Client *c) {
  static const char WORDS[] = "The quick brown fox jumps over the lazy dog; \\\"lorem ipsum\\\" dolor sit amet, 0123456789.\\n";
  char *text = need(malloc((size_t)message_bytes + sizeof WORDS + 64));
  int len = sprintf(text, "conv-%08d-%08d What is vLLM?", c->number, 0);
  for (; len + (int)sizeof WORDS <= message_bytes; len += (int)sizeof WORDS - 1) memcpy(text + len, WORDS, sizeof WORDS);
  text[len] = 0;
  return text;
}

static void make_request(Client *c) {
  char *text = message(c), *body = need(malloc(strlen(text) + 1024));
  int body_len = sprintf(body,
                         "{\"model\":\"m\",\"conversation_id\":\"conv-%08d-%08d\",\"messages\":[{\"role\":\"system\","
                         "\"content\":\"You are a helpful assistant.\"},{\"role\":\"user\",\"content\":\"%s\"}],"
                         "\"temperature\":0.7,\"max_tokens\":%d,\"seed\":%ld,\"stream\":%s}",
                         c->number, 0, text, chunks, delay_us,
                         whole ? "false" : "true,\"stream_options\":{\"include_usage\":true}");
  c->request = need(malloc((size_t)body_len + REQUEST_HEAD));
  int head_len = sprintf(c->request,
                         "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: OpenAI/Python 3.1.0\r\n"
                         "Accept: application/json\r\nAccept-Encoding: identity\r\nAuthorization: Bearer sk-test\r\n"
                         "Content-Type: application/json\r\nX-Session-ID: conv-%08d\r\nContent-Length: %d\r\n\r\n",
                         path, port, c->number, body_len);
  memcpy(c->request + head_len, body, (size_t)body_len + 1);
  c->request_len = head_len + body_len;
  const int past_number = (int)sizeof "conv-00000000-" - 1;
  char *id = strstr(c->request + head_len, "conv-");
  c->id_at[0] = (int)(id - c->request) + past_number;
  c->id_at[1] = (int)(strstr(id + 1, "conv-") - c->request) + past_number;
  free(body);
  free(text);
}

static void open_connection(Client *c) {
  c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  no_delay(c->fd);
  struct sockaddr_in address = loopback(port);
  if (connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0 && errno != EINPROGRESS) fail("connect");
  opened++;
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
}

static void writable(Client *c) {
  while (c->state != RESTING && c->request_at < c->request_len) {
    ssize_t sent = send(c->fd, c->request + c->request_at, (size_t)(c->request_len - c->request_at), MSG_NOSIGNAL);
    if (sent < 0) return;  // not yet; an error shows when reading
    c->request_at += (int)sent;
  }
}

static void start(Client *c) {
  if (c->turn && c->turn % turns == 0) {
    char digits[ID_DIGITS + 8];
    snprintf(digits, sizeof digits, "%08u", (unsigned)(c->turn / turns) % 100000000u);
    memcpy(c->request + c->id_at[0], digits, ID_DIGITS);
    memcpy(c->request + c->id_at[1], digits, ID_DIGITS);
  }
  c->turn++;
  c->state = IN_HEAD;
  c->framing = SIZE_LINE;
  c->head_len = c->events = c->newlines = c->request_at = 0;
  c->begun = c->chunked = false;
  c->left = -1;
  c->sent_at = now_ns();
  writable(c);
}

// -- answers

static void sample(const Client *c, uint64_t now) {
  if (samples == sample_cap) {
    sample_cap = sample_cap ? 2 * sample_cap : 65536;
    first_us = need(realloc(first_us, sample_cap * sizeof *first_us));
    total_us = need(realloc(total_us, sample_cap * sizeof *total_us));
  }
  first_us[samples] = (float)(c->first_at - c->sent_at) / 1e3f;
  total_us[samples++] = (float)(now - c->sent_at) / 1e3f;
}

static void finish(Client *c) {
  uint64_t now = now_ns();
  int expected = whole ? 0 : chunks + 3;  // the role, the last chunk's finish reason within `chunks`, usage, [DONE]
  done++;
  events += (uint64_t)c->events;
  if (c->status != 200 || c->events != expected) bad++;
  sample(c, now);
  c->state = RESTING;
  c->wake_at = 0;
  if ((requests >= 0 && started >= requests) || now > ends_at) return;
  started++;
  if (pause_us)
    c->wake_at = now + (uint64_t)pause_us * 1000u;
  else
    start(c);
}

static void again(Client *c) {
  close(c->fd);
  if (++errors > MANY_ERRORS) {
    fprintf(stderr, "load: too many errors\n");
    stopping = 1;
    return;
  }
  open_connection(c);
  start(c);
}

static void body(Client *c, const char *data, int64_t len) {
  if (len > 0 && !c->begun) {
    c->begun = true;
    c->first_at = now_ns();
    begun++;
  }
  for (const char *end = data + len; data < end;) {
    if (c->newlines && *data == '\n') {
      c->events++;
      c->newlines = 0;
      data++;
      continue;
    }
    const char *newline = memchr(data, '\n', (size_t)(end - data));
    c->newlines = newline != NULL;
    data = newline ? newline + 1 : end;
  }
}

static int feed_head(Client *c, const char *data, int len) {
  int room = ANSWER_HEAD - c->head_len, take = room < len ? room : len, before = c->head_len;
  memcpy(c->head + before, data, (size_t)take);
  c->head_len += take;
  c->head[c->head_len] = 0;
  char *end = strstr(c->head, "\r\n\r\n");
  if (!end) {
    if (take == 0) again(c);
    return take ? take : len;
  }
  end[2] = 0;
  c->status = atoi(c->head + 9);
  const char *coding = header(c->head, "transfer-encoding"), *length = header(c->head, "content-length");
  c->chunked = coding != NULL;
  c->left = c->chunked ? 0 : length ? atoll(length) : -1;
  c->state = IN_BODY;
  if (c->status != 200 && bad < 3) fprintf(stderr, "load: %.200s\n", c->head);
  if (c->left == 0 && !c->chunked) finish(c);
  return (int)(end + 4 - c->head) - before;
}

static int feed_body(Client *c, const char *data, int len) {
  int take = c->left >= 0 && c->left < len ? (int)c->left : len;
  body(c, data, take);
  if (c->left >= 0 && (c->left -= take) == 0) finish(c);
  return take;
}

static int feed_chunks(Client *c, const char *data, int len) {
  if (c->framing == CHUNK) {
    int take = c->left < len ? (int)c->left : len;
    body(c, data, take);
    if ((c->left -= take) == 0) c->framing = CHUNK_END;
    return take;
  }
  if (*data == '\n') {
    if (c->framing == TRAILER) {
      finish(c);
    } else if (c->framing == CHUNK_END) {
      c->framing = SIZE_LINE;
    } else {
      c->framing = c->left ? CHUNK : TRAILER;
      http_chunks += c->left != 0;
    }
  } else if (c->framing == SIZE_LINE && *data != '\r') {
    int digit = hex_digit(*data);
    c->left = c->left * 16 + (digit < 0 ? 0 : digit);
  }
  return 1;
}

static void ended(Client *c) {
  if (c->state == IN_BODY && !c->chunked && c->left < 0) {
    int old = c->fd;  // the body ends with its connection
    open_connection(c);
    close(old);
    finish(c);
  } else if (c->state == RESTING) {
    close(c->fd);
    open_connection(c);
  } else {
    again(c);
  }
}

static void readable(Client *c) {
  static char buffer[READ_BYTES];
  for (;;) {
    int fd = c->fd;
    ssize_t got = recv(fd, buffer, sizeof buffer, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      ended(c);
      return;
    }
    bytes += (uint64_t)got;
    const char *data = buffer;
    for (int len = (int)got; len > 0 && c->fd == fd && c->state != RESTING;) {
      int used = c->state == IN_HEAD ? feed_head(c, data, len) : c->chunked ? feed_chunks(c, data, len) : feed_body(c, data, len);
      data += used;
      len -= used;
    }
    if (c->fd != fd) return;
  }
}

// -- the run

static int by_size(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return x < y ? -1 : x > y;
}

static float quantile(const float *values, double q) { return samples ? values[(size_t)((double)(samples - 1) * q)] : 0; }

static void report(double elapsed) {
  qsort(first_us, samples, sizeof *first_us, by_size);
  qsort(total_us, samples, sizeof *total_us, by_size);
  printf("{\"seconds\":%.3f,\"done\":%lu,\"events\":%lu,\"bytes\":%lu,\"errors\":%lu,\"bad\":%lu,\"httpChunks\":%lu,\"opened\":%lu,",
         elapsed, done, events, bytes, errors, bad, http_chunks, opened);
  printf("\"perSecond\":%.1f,\"eventsPerSecond\":%.1f,", (double)done / elapsed, (double)events / elapsed);
  printf("\"ttftMin\":%.1f,\"ttftP50\":%.1f,\"ttftP90\":%.1f,\"ttftP99\":%.1f,\"totalP50\":%.1f,\"totalP99\":%.1f}\n", quantile(first_us, 0),
         quantile(first_us, .5), quantile(first_us, .9), quantile(first_us, .99), quantile(total_us, .5), quantile(total_us, .99));
}

static void stop(int number) {
  (void)number;
  stopping = 1;
}

static void read_options(int argc, char **argv) {
  for (int option; (option = getopt(argc, argv, "p:P:c:t:n:k:m:d:b:r:Ni")) != -1;) switch (option) {
      case 'p': port = atoi(optarg); break;
      case 'P': path = optarg; break;
      case 'c': connections = atoi(optarg); break;
      case 't': seconds = atof(optarg); break;
      case 'n': requests = atol(optarg); break;
      case 'k': pause_us = atol(optarg); break;
      case 'm': chunks = atoi(optarg); break;
      case 'd': delay_us = atol(optarg); break;
      case 'b': message_bytes = atol(optarg); break;
      case 'r': turns = atoi(optarg); break;
      case 'N': whole = true; break;
      case 'i': hold = true; break;
      default: exit(2);
    }
}

// Wakes clients whose pause is over; returns whether any client is still at work or will be.
static bool wake(Client *clients) {
  bool working = false;
  uint64_t now = pause_us ? now_ns() : 0;
  for (int at = 0; at < connections; at++) {
    Client *c = &clients[at];
    if (c->state == RESTING && c->wake_at && now >= c->wake_at) {
      c->wake_at = 0;
      start(c);
    }
    working |= c->state != RESTING || c->wake_at;
    if (working && !pause_us) break;
  }
  return working;
}

int main(int argc, char **argv) {
  read_options(argc, argv);
  signal(SIGTERM, stop);
  signal(SIGINT, stop);
  many_files();
  epoll_fd = epoll_create1(0);
  Client *clients = need(calloc((size_t)connections, sizeof *clients));
  uint64_t began = now_ns();
  ends_at = requests >= 0 || hold ? UINT64_MAX : began + (uint64_t)(seconds * 1e9);
  for (int at = 0; at < connections; at++) {
    clients[at].number = at + 1;
    make_request(&clients[at]);
    open_connection(&clients[at]);
    started++;
    start(&clients[at]);
  }
  struct epoll_event ready[EVENTS];
  bool said = false;
  while (!stopping && (wake(clients) || hold)) {
    int count = epoll_wait(epoll_fd, ready, EVENTS, pause_us ? 1 : 100);
    for (int at = 0; at < count; at++) {
      Client *c = ready[at].data.ptr;
      if (ready[at].events & EPOLLOUT) writable(c);
      if (ready[at].events & ~(uint32_t)EPOLLOUT) readable(c);
    }
    if (hold && !said && begun >= connections) {
      said = true;
      puts("READY");
      fflush(stdout);
    }
  }
  report((double)(now_ns() - began) / 1e9);
  return 0;
}
