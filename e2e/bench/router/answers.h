// What the fake engines say, with the sizes and fields of vLLM 0.33 and of the guarded connector; and their counts.
#ifndef DUPLEX_BENCH_ANSWERS_H
#define DUPLEX_BENCH_ANSWERS_H

#include <stdarg.h>

#include "common.h"

enum { BLOCKS = 64, BLOCK_SIZE = 16, TOKENS = BLOCKS * BLOCK_SIZE, STEP = 64, POOL_BLOCKS = 65536, SERIALS = 1 << 22 };

typedef enum { PREFILL, DECODE } Role;
typedef enum { STATS, METRICS, OTHER } Page;

typedef struct {
  char *text;
  int len, cap;
} Text;

typedef struct {
  uint64_t prefill, decode, chunks, aborts, bytes_in, connections;
  uint64_t pulls, hand_offs, decode_without_kv;                // what was read
  uint64_t held, renewals, releases, lease_messages;           // what became of holds
  uint64_t wrong_pulls, wrong_hand_offs, wrong_releases;       // each must stay 0 but for hand-offs without a reader
} Counts;

static Counts counts;
static uint8_t *held;       // by serial number: whether decode holds it
static uint8_t *handed;     // by serial number: whether prefill has handed it off and nobody has read it
static uint32_t next_hold, next_hand_off;

static Text stream_start, content_chunk, stream_end, no_such_model;
static Text held_end, miss_answer, pull_answer, plain_decode, held_decode, page_text;
static int held_end_serial, miss_serial, pull_serial, held_decode_serial;

static void add(Text *t, const char *format, ...) {
  va_list arguments;
  for (;;) {
    va_start(arguments, format);
    int len = vsnprintf(t->text ? t->text + t->len : NULL, t->text ? (size_t)(t->cap - t->len) : 0, format, arguments);
    va_end(arguments);
    if (t->text && len < t->cap - t->len) {
      t->len += len;
      return;
    }
    t->text = need(realloc(t->text, (size_t)(t->cap = 2 * (t->cap + len) + 64)));
  }
}

static void add_chunk(Text *t, const Text *payload) { add(t, "%x\r\n%.*s\r\n", payload->len, payload->len, payload->text); }

// The digests that a guarded engine publishes; their values do not matter here, their size does.
static void add_proof(Text *t) {
  add(t, "\"step\":%d,\"marks\":[", STEP);
  for (int at = 0; at < TOKENS / STEP; at++) add(t, "%s\"%08x%08x%08x%08x\"", at ? "," : "", at * 7919, at * 104729, at, ~at);
  add(t, "],\"count\":%d,\"last\":\"%032x\",\"groups\":[[\"full\",%d,null]],\"blocks\":%d", TOKENS, 77, BLOCK_SIZE, POOL_BLOCKS);
}

static void add_params(Text *t, Role role, const char *report) {
  const char *remote_prefill = role == PREFILL ? "true" : "false", *remote_decode = role == PREFILL ? "false" : "true";
  add(t, "{\"do_remote_prefill\":%s,\"do_remote_decode\":%s,\"remote_block_ids\":[[", remote_prefill, remote_decode);
  for (int at = 0; at < BLOCKS; at++) add(t, "%s%d", at ? "," : "", 1000 + at * 7919 % 60000);
  add(t, "]],\"remote_engine_id\":\"%s\",", role == PREFILL ? "5c5ad8b4-1d1f-4c6e-9a5e-2f1f0f6a7c11" : "9a7e6f1c-7b1c-4a9e-8d57-1b2c3d4e5f60");
  add(t, "\"remote_request_id\":\"chatcmpl-___%s_addr_127.0.0.1_########\",", role == PREFILL ? "prefill" : "decode");
  add(t, "\"remote_host\":\"127.0.0.1\",\"remote_port\":%d,\"tp_size\":1,\"dcp_size\":1,\"pp_size\":1,", role == PREFILL ? 5600 : 5601);
  add(t, "\"remote_num_tokens\":%d,\"remote_blocks_expiry_time\":12345.678,", TOKENS);
  add(t, "\"remote_registration_generation\":1,\"transfer_mode\":\"pull\",\"duplex\":{");
  add_proof(t);
  add(t, "%s}}", report);
}

static const char PREFIX[] =
    "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\","
    "\"created\":1764412345,\"model\":\"m\",\"choices\":";

static void add_event(Text *t, const char *rest) {
  Text payload = {0};
  add(&payload, "%s%s\n\n", PREFIX, rest);
  add_chunk(t, &payload);
  free(payload.text);
}

static void make_stream(void) {
  add(&stream_start, "HTTP/1.1 200 OK\r\ndate: Sat, 29 Nov 2025 10:00:00 GMT\r\nserver: uvicorn\r\n"
                     "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n");
  add_event(&stream_start, "[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                           "\"finish_reason\":null}],\"prompt_token_ids\":null,\"prompt_text\":null}");
  add_event(&content_chunk, "[{\"index\":0,\"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null,"
                            "\"token_ids\":null}],\"kv_transfer_params\":null}");
  for (int with = 0; with < 2; with++) {
    Text *end = with ? &held_end : &stream_end, finish = {0};
    add(&finish, "[{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,\"finish_reason\":\"length\","
                 "\"stop_reason\":null,\"token_ids\":null}],\"kv_transfer_params\":");
    if (with)
      add_params(&finish, DECODE, "");
    else
      add(&finish, "null");
    add(&finish, "}");
    add_event(end, finish.text);
    add_event(end, "[],\"usage\":{\"prompt_tokens\":1024,\"total_tokens\":1032,\"completion_tokens\":8}}");
    add(end, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
    free(finish.text);
  }
}

static void make_whole(Text *t, int status, const char *reason, const char *kind, const Text *body) {
  add(t, "HTTP/1.1 %d %s\r\ndate: Sat, 29 Nov 2025 10:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: %d\r\n"
         "content-type: %s\r\n\r\n%.*s", status, reason, body->len, kind, body->len, body->text);
}

static void make_answer(Text *t, Role role, bool params, const char *report) {
  Text body = {0};
  add(&body, "{\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion\",\"created\":1764412345,"
             "\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The\","
             "\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"tool_calls\":[],"
             "\"reasoning\":null},\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null}],"
             "\"service_tier\":null,\"system_fingerprint\":null,\"usage\":{\"prompt_tokens\":1024,\"total_tokens\":1025,"
             "\"completion_tokens\":1,\"prompt_tokens_details\":null},\"prompt_logprobs\":null,\"prompt_token_ids\":null,"
             "\"kv_transfer_params\":");
  if (params)
    add_params(&body, role, report);
  else
    add(&body, "null");
  add(&body, "}");
  make_whole(t, 200, "OK", "application/json", &body);
  free(body.text);
}

static int serial_at(const Text *t) {
  const char *found = memmem(t->text, (size_t)t->len, "########", 8);
  if (!found) fail("no place for a serial number");
  return (int)(found - t->text);
}

static void make_answers(void) {
  held = need(calloc(SERIALS, 1));
  handed = need(calloc(SERIALS, 1));
  make_stream();
  make_answer(&miss_answer, PREFILL, true, "");
  make_answer(&pull_answer, PREFILL, true, ",\"outcome\":\"full\",\"reason\":\"\",\"proved\":1008,\"pulled\":1008,\"local\":0,\"computed\":16");
  make_answer(&plain_decode, DECODE, false, "");
  make_answer(&held_decode, DECODE, true, "");
  held_end_serial = serial_at(&held_end);
  miss_serial = serial_at(&miss_answer);
  pull_serial = serial_at(&pull_answer);
  held_decode_serial = serial_at(&held_decode);
  Text error = {0};
  add(&error, "{\"error\":{\"message\":\"The model `duplex-lease` does not exist.\",\"type\":\"NotFoundError\",\"param\":\"model\",\"code\":404}}");
  make_whole(&no_such_model, 404, "Not Found", "application/json", &error);
  free(error.text);
}

static void put_serial(Text *t, int at, uint32_t serial) {
  char digits[9];
  snprintf(digits, sizeof digits, "%08x", serial);
  memcpy(t->text + at, digits, 8);
}

// Returns the serial number in a request id such as "chatcmpl-___decode_addr_127.0.0.1_0000002a"; -1 for any other.
static int64_t serial_of(const char *id, Role role) {
  const char *mark = role == PREFILL ? "___prefill_addr_" : "___decode_addr_";
  const char *quote = *id == '"' ? strchr(id + 1, '"') : NULL, *found = strstr(id, mark);
  if (!quote || !found || found > quote || quote - id < 9) return -1;
  int64_t serial = 0;
  for (const char *digit = quote - 8; digit < quote; digit++) {
    if (hex_digit(*digit) < 0) return -1;
    serial = serial * 16 + hex_digit(*digit);
  }
  return serial < SERIALS ? serial : -1;
}

static uint32_t new_hold(void) {
  uint32_t serial = next_hold++ % SERIALS;
  held[serial] = 1;
  counts.held++;
  return serial;
}

static const Text *stream_end_held(void) {
  put_serial(&held_end, held_end_serial, new_hold());
  return &held_end;
}

static const Text *decode_answer(bool holds) {
  if (!holds) return &plain_decode;
  put_serial(&held_decode, held_decode_serial, new_hold());
  return &held_decode;
}

static const Text *prefill_answer(bool pulled) {
  uint32_t serial = next_hand_off++ % SERIALS;
  handed[serial] = 1;
  put_serial(pulled ? &pull_answer : &miss_answer, pulled ? pull_serial : miss_serial, serial);
  return pulled ? &pull_answer : &miss_answer;
}

static void pull(const char *id, bool keep) {
  int64_t serial = serial_of(id, DECODE);
  counts.pulls++;
  if (serial < 0 || !held[serial]) {
    counts.wrong_pulls++;
    return;
  }
  if (!keep) held[serial] = 0;
}

static void read_hand_off(const char *id) {
  int64_t serial = serial_of(id, PREFILL);
  counts.hand_offs++;
  if (serial < 0 || !handed[serial])
    counts.wrong_hand_offs++;
  else
    handed[serial] = 0;
}

// Reads {"renew":{"id":seconds,...}}: 0 seconds release. Other lease messages free a hand-off.
static void take_lease_message(const char *body, int len) {
  counts.lease_messages++;
  static const char KEY[] = "\"renew\":{";
  const char *at = memmem(body, (size_t)len, KEY, sizeof KEY - 1);
  for (at = at ? at + sizeof KEY - 1 : NULL; at && *at == '"';) {
    const char *end = strchr(at + 1, '"');
    if (!end || end[1] != ':') return;
    int64_t serial = serial_of(at, DECODE);
    bool release = end[2] == '0';
    if (!release) counts.renewals++;
    if (release) counts.releases++;
    if (serial < 0 || !held[serial]) counts.wrong_releases++;
    if (release && serial >= 0) held[serial] = 0;
    at = strpbrk(end, ",}");
    at = at && *at == ',' ? at + 1 : NULL;
  }
}

static uint64_t count(const uint8_t *marks) {
  uint64_t sum = 0;
  for (int at = 0; at < SERIALS; at++) sum += marks[at];
  return sum;
}

static const Text *page(Page kind) {
  Text body = {0};
  if (kind == STATS) {
    add(&body, "{\"prefill\":%lu,\"decode\":%lu,\"chunks\":%lu,\"aborts\":%lu,\"bytesIn\":%lu,\"connections\":%lu,", counts.prefill,
        counts.decode, counts.chunks, counts.aborts, counts.bytes_in, counts.connections);
    add(&body, "\"pulls\":%lu,\"handOffs\":%lu,\"decodeWithoutKV\":%lu,\"held\":%lu,\"renewals\":%lu,\"releases\":%lu,\"leaseMessages\":%lu,",
        counts.pulls, counts.hand_offs, counts.decode_without_kv, counts.held, counts.renewals, counts.releases, counts.lease_messages);
    add(&body, "\"wrongPulls\":%lu,\"wrongHandOffs\":%lu,\"wrongReleases\":%lu,\"heldNow\":%lu,\"handedNow\":%lu}", counts.wrong_pulls,
        counts.wrong_hand_offs, counts.wrong_releases, count(held), count(handed));
  } else if (kind == METRICS) {
    add(&body, "vllm:cache_config_info{block_size=\"%d\",num_gpu_blocks=\"%d\"} 1.0\n", BLOCK_SIZE, POOL_BLOCKS);
  } else {
    add(&body, "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"created\":1,\"owned_by\":\"vllm\"}],\"version\":\"0.33.0\","
               "\"model_path\":\"m\",\"served_model_name\":\"m\",\"tokenizer_path\":\"\",\"is_generation\":true,\"tp_size\":1,\"dp_size\":1}");
  }
  page_text.len = 0;
  make_whole(&page_text, 200, "OK", kind == METRICS ? "text/plain" : "application/json", &body);
  free(body.text);
  return &page_text;
}

#endif
