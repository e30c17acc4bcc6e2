// What the fake engines and the load generator share: clock, sockets, and reading of HTTP heads.
#ifndef DUPLEX_BENCH_COMMON_H
#define DUPLEX_BENCH_COMMON_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void fail(const char *what) {
  perror(what);
  exit(1);
}

static inline void *need(void *memory) {
  if (!memory) fail("memory");
  return memory;
}

static inline struct sockaddr_in loopback(int port) {
  return (struct sockaddr_in){
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static inline void no_delay(int fd) {
  int on = 1;
  setsockopt(fd, SOL_TCP, TCP_NODELAY, &on, sizeof on);
}

static inline void many_files(void) {
  struct rlimit limit = {20000, 20000};
  if (setrlimit(RLIMIT_NOFILE, &limit) < 0) fail("setrlimit");
}

// Returns the value of a header in a head whose first line and each further one ends in CRLF; NULL where absent.
static inline const char *header(const char *head, const char *name) {
  char wanted[64];
  snprintf(wanted, sizeof wanted, "\r\n%s:", name);
  const char *found = strcasestr(head, wanted);
  return found ? found + strlen(wanted) : NULL;
}

static inline int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = (char)(c | 32);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

#endif
