package cachecopy_test

const workerEnv = "CACHECOPY_TEST_WORKER"

func work(string) int { return 0 }
